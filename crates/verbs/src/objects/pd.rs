//! Protection domains, parent domains and thread domains.

use crate::base::ffi::{INVALID, Res, arg, pointer, quiet, status};
use crate::base::fork_state::PerLife;
use crate::base::object::{Object, give, object, take_back};
use crate::objects::allocator::Allocator;
use crate::objects::context::{Context, Owned};
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use verbs_sys::*;

/// What a `struct ibv_pd` stands for.
enum Kind {
    /// Made by `ibv_alloc_pd`.
    Own,
    /// Made by `ibv_import_pd`: the domain belongs to another context.
    Imported,
    /// Made by `ibv_alloc_parent_domain` around this domain and, maybe, a thread domain.
    Parent(*const Pd, *const Td),
}

/// A protection domain.
#[repr(C)]
pub struct Pd {
    c: UnsafeCell<ibv_pd>,
    hca: PerLife<Arc<hca::Pd>>,
    kind: Kind,
    /// Parent domains around this one.
    parents: AtomicU32,
    /// Provides the memory of queues made with this one.
    allocator: Option<Allocator>,
    /// Pieces of its memory in use.
    buffers: AtomicU32,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Pd {
    type C = ibv_pd;
}

impl Pd {
    fn new(context: &Context, handle: u32, hca: Arc<hca::Pd>, kind: Kind) -> Box<Pd> {
        let c = UnsafeCell::new(ibv_pd { context: context.as_c(), handle });
        Box::new(Pd {
            c,
            hca: PerLife::new(hca),
            kind,
            parents: AtomicU32::new(0),
            allocator: None,
            buffers: AtomicU32::new(0),
        })
    }

    /// The HCA's domain. A forked child gets one of its own for its parent's, though not for an
    /// imported one (EIO).
    pub fn hca(&self) -> Res<&Arc<hca::Pd>> {
        let context = self.context()?;
        let around = match self.kind {
            // SAFETY: it was live when the parent domain was made, and counts it until that ends.
            Kind::Parent(inner, _) => Some(unsafe { &*inner }.hca()?),
            _ => None,
        };
        self.hca.get(|_| match (&self.kind, around) {
            (Kind::Imported, _) => Err(crate::base::ffi::Errno(libc::EIO)),
            (_, Some(inner)) => Ok(inner.clone()),
            (_, None) => {
                let own = context.device().alloc_pd()?;
                context.ucontext().renew(self.handle(), Owned::Pd(own.clone()));
                Ok(own)
            }
        })
    }

    /// The pointer the program holds.
    pub fn as_c(&self) -> *mut ibv_pd {
        self.c.get()
    }

    fn handle(&self) -> u32 {
        // SAFETY: the C struct is live; the program only reads it.
        unsafe { (*self.c.get()).handle }
    }

    /// The context it belongs to.
    pub fn context(&self) -> Res<&Context> {
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        unsafe { Context::of((*self.c.get()).context) }
    }

    /// Whether it is a parent domain, as `parent_domain` members of other verbs require.
    pub fn is_parent(&self) -> bool {
        matches!(self.kind, Kind::Parent(..))
    }

    /// What provides the memory of queues made with it.
    pub fn allocator(&self) -> Option<&Allocator> {
        self.allocator.as_ref()
    }

    /// Counts a piece of memory in use.
    pub fn add_buffer(&self) {
        self.buffers.fetch_add(1, SeqCst);
    }

    /// Takes one off the count.
    pub fn drop_buffer(&self) {
        self.buffers.fetch_sub(1, SeqCst);
    }
}

/// `ibv_alloc_pd(3)`.
pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) }?;
        let hca = context.device().alloc_pd()?;
        let handle = context.ucontext().own(Owned::Pd(hca.clone()));
        Ok(give(Pd::new(context, handle, hca, Kind::Own)))
    })
}

/// `ibv_dealloc_pd(3)`: EBUSY while something belongs to it.
pub(crate) unsafe extern "C" fn ibv_dealloc_pd(c: *mut ibv_pd) -> c_int {
    status(|| {
        // SAFETY: the program passes a live PD.
        let pd = unsafe { object::<Pd>(c) }?;
        let context = pd.context()?;
        if pd.parents.load(SeqCst) > 0 || pd.buffers.load(SeqCst) > 0 {
            return Err(crate::base::ffi::Errno(libc::EBUSY));
        }
        match pd.kind {
            Kind::Own => {
                pd.hca()?.dealloc()?;
                context.ucontext().disown(pd.handle());
            }
            Kind::Imported => return Err(INVALID),
            Kind::Parent(inner, td) => {
                // SAFETY: both were live when the parent domain was made, and count it until now.
                let (inner, td) = unsafe { (&*inner, td.as_ref()) };
                inner.parents.fetch_sub(1, SeqCst);
                if let Some(td) = td {
                    td.users.fetch_sub(1, SeqCst);
                }
            }
        }
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Pd>(c) });
        Ok(())
    })
}

/// `ibv_import_pd(3)`.
pub(crate) unsafe extern "C" fn ibv_import_pd(
    context: *mut ibv_context,
    handle: u32,
) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) }?;
        let hca = match context.ucontext().objects().get(&handle) {
            Some(Owned::Pd(pd)) => pd.clone(),
            _ => return Err(crate::base::ffi::Errno(libc::ENOENT)),
        };
        Ok(give(Pd::new(context, handle, hca, Kind::Imported)))
    })
}

/// `ibv_unimport_pd(3)`.
pub(crate) unsafe extern "C" fn ibv_unimport_pd(c: *mut ibv_pd) {
    quiet((), || {
        // SAFETY: the program passes a live PD.
        if matches!(unsafe { object::<Pd>(c) }?.kind, Kind::Imported) {
            // SAFETY: it came from `give`, and the program uses it no more.
            drop(unsafe { take_back::<Pd>(c) });
        }
        Ok(())
    });
}

/// A thread domain: the program's promise to use what belongs to it from one thread at a time.
/// Locks here are cheap, so the promise changes nothing.
#[repr(C)]
pub struct Td {
    c: UnsafeCell<ibv_td>,
    users: AtomicU32,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Td {
    type C = ibv_td;
}

/// `ibv_alloc_td(3)`.
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    attr: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (context, attr) = unsafe { (Context::of(context)?, arg(attr)?) };
        if attr.comp_mask != 0 {
            return Err(INVALID);
        }
        let c = UnsafeCell::new(ibv_td { context: context.as_c() });
        Ok(give(Box::new(Td { c, users: AtomicU32::new(0) })))
    })
}

/// `ibv_dealloc_td(3)`: EBUSY while a parent domain uses it.
pub(crate) unsafe extern "C" fn dealloc_td(c: *mut ibv_td) -> c_int {
    status(|| {
        // SAFETY: the program passes a live thread domain.
        let td = unsafe { object::<Td>(c) }?;
        if td.users.load(SeqCst) > 0 {
            return Err(crate::base::ffi::Errno(libc::EBUSY));
        }
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Td>(c) });
        Ok(())
    })
}

/// `ibv_alloc_parent_domain(3)`.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    attr: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (context, attr) = unsafe { (Context::of(context)?, arg(attr)?) };
        let allocator = Allocator::of(attr)?;
        // SAFETY: the program passes a live PD.
        let inner = unsafe { object::<Pd>(attr.pd) }?;
        if inner.is_parent() || !std::ptr::eq(inner.context()?, context) {
            return Err(INVALID);
        }
        let hca = inner.hca()?.clone();
        inner.parents.fetch_add(1, SeqCst);
        let td = attr.td.cast::<Td>().cast_const();
        // SAFETY: null or a live thread domain.
        if let Some(td) = unsafe { td.as_ref() } {
            td.users.fetch_add(1, SeqCst);
        }
        let kind = Kind::Parent(std::ptr::from_ref(inner), td);
        let mut parent = Pd::new(context, inner.handle(), hca, kind);
        parent.allocator = allocator;
        Ok(give(parent))
    })
}
