//! Contexts: an open device, the tables behind the header's inline functions, and what one context may share with
//! another by `ibv_import_device`.

use crate::abi::*;
use crate::async_events::Events;
use crate::engine::{self, Engine};
use crate::ffi::{INVALID, Res, UNSUPPORTED, last_errno, pointer, status};
use crate::fifo::Fifo;
use crate::fork_state::PerLife;
use crate::{
    counters, cq, cq_ex, device, dm, flow, mr, mw, null_mr, pd, post, qp, query, srq, tm, wq, xrc,
};
use descriptors::Kept;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::c_int;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What `num_comp_vectors` says: completion events are not bound to interrupt vectors here, so one is enough.
const COMP_VECTORS: c_int = 1;

/// An object that a context owns, as the kernel would: whatever the program leaves behind ends with the context.
#[allow(dead_code, reason = "some are only held, to end with their context")]
pub enum Owned {
    Pd(Arc<hca::Pd>),
    Mr(Arc<hca::Mr>, Arc<Mutex<mr::Facts>>),
    Mw(Arc<hca::Mw>),
    Key(Arc<hca::IndirectKey>),
    Cq(Arc<hca::Cq>),
    Dm(Arc<dm::Memory>),
    Srq(Arc<hca::Srq>),
    Xrcd(Arc<hca::Xrcd>),
    Qp(Arc<hca::Qp>),
    Wq(Arc<hca::Wq>),
    IndTable(Arc<hca::IndTable>),
    Flow(Arc<hca::Flow>),
}

/// What the kernel keeps behind a uverbs file: the objects, by handle. Contexts that import one another share it.
pub struct Ucontext {
    /// Number of the device.
    device: usize,
    /// A unique inode, by which an import finds us.
    cmd_fd: Kept,
    next_handle: AtomicU32,
    /// A tree, whose nodes are small: one large piece of memory could be refused.
    objects: PerLife<Mutex<BTreeMap<u32, Owned>>>,
}

impl Ucontext {
    fn new(device: usize) -> Res<Ucontext> {
        // SAFETY: the name is NUL-terminated.
        let fd = unsafe { libc::memfd_create(c"peerdma-context".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(last_errno());
        }
        // SAFETY: `fd` was just created and belongs to nobody else.
        let cmd_fd = Kept::here(unsafe { OwnedFd::from_raw_fd(fd) });
        let objects = PerLife::new(Mutex::default());
        Ok(Ucontext { device, cmd_fd, next_handle: AtomicU32::new(1), objects })
    }

    /// The objects of this process by handle.
    pub fn objects(&self) -> MutexGuard<'_, BTreeMap<u32, Owned>> {
        let Ok(objects) = self.objects.get(|_| Ok::<_, Infallible>(Mutex::default()));
        objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files what a forked child has in the place of its parent's object.
    pub fn renew(&self, handle: u32, object: Owned) {
        self.objects().insert(handle, object);
    }

    /// Files an object under a new handle.
    pub fn own(&self, object: Owned) -> u32 {
        let handle = self.next_handle.fetch_add(1, Relaxed);
        self.objects().insert(handle, object);
        handle
    }

    /// Lets go of an object.
    pub fn disown(&self, handle: u32) {
        let object = self.objects().remove(&handle);
        // Its end may take locks of the device: not under ours.
        drop(object);
    }
}

impl Drop for Ucontext {
    fn drop(&mut self) {
        let mut objects = std::mem::take(&mut *self.objects());
        // Queue pairs first: they use all the others.
        for object in objects.values() {
            if let Owned::Qp(qp) = object {
                qp.close();
            }
        }
        objects.clear();
    }
}

/// What a context has of the engine.
struct Life {
    engine: Arc<Engine>,
    events: Arc<Events>,
}

impl Life {
    fn begin(device: usize, events: Events) -> Res<Life> {
        let engine = engine::get(device)?;
        let events = Arc::new(events);
        engine.sink.add_context(events.clone());
        Ok(Life { engine, events })
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.engine.sink.remove_context(&self.events);
    }
}

/// An open context.
#[repr(C)]
pub struct Context {
    c: UnsafeCell<verbs_context>,
    life: PerLife<Life>,
    ucontext: Arc<Ucontext>,
}

/// The contexts whose `cmd_fd` an import may name.
static OPEN: Mutex<Vec<std::sync::Weak<Ucontext>>> = Mutex::new(Vec::new());

impl Context {
    fn open(ucontext: Arc<Ucontext>) -> Res<*mut ibv_context> {
        let life = Life::begin(ucontext.device, Fifo::new()?)?;
        let c = tables(ucontext.device, ucontext.cmd_fd.as_raw_fd(), life.events.fd());
        let life = PerLife::new(life);
        let context = Box::into_raw(Box::new(Context { c: UnsafeCell::new(c), life, ucontext }));
        // SAFETY: `context` is live and `context` lies inside its first field.
        Ok(unsafe { &raw mut (*(*context).c.get()).context })
    }

    /// The context behind the program's pointer. In a forked child it begins a life of its own, with an engine and
    /// asynchronous events of its own.
    ///
    /// # Safety
    /// `context` is null or an open context of ours.
    pub unsafe fn of<'a>(context: *mut ibv_context) -> Res<&'a Context> {
        if context.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the caller's promise.
        let context = unsafe { &*Context::whole(context) };
        let renew =
            |last: &Life| Life::begin(context.ucontext.device, Fifo::instead_of(last.events.fd())?);
        context.life.get(renew)?;
        context.device().alive()?;
        Ok(context)
    }

    /// What the program's pointer is the middle of.
    ///
    /// # Safety
    /// `context` is an open context of ours.
    unsafe fn whole(context: *mut ibv_context) -> *mut Context {
        // SAFETY: the program's pointer is to the member `context` of the `verbs_context` that begins a `Context`.
        unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast() }
    }

    /// The pointer that the program holds.
    pub fn as_c(&self) -> *mut ibv_context {
        // SAFETY: `c` is live; only the address of a member is taken.
        unsafe { &raw mut (*self.c.get()).context }
    }

    /// The device.
    pub fn device(&self) -> &Arc<hca::Device> {
        &self.life.latest().engine.device
    }

    /// The process's engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.life.latest().engine
    }

    /// The objects.
    pub fn ucontext(&self) -> &Arc<Ucontext> {
        &self.ucontext
    }

    /// The asynchronous events.
    pub fn events(&self) -> &Arc<Events> {
        &self.life.latest().events
    }
}

/// The tables of a new context. What is left out has no entry: the header's inline functions then say EOPNOTSUPP.
fn tables(device: usize, cmd_fd: c_int, async_fd: c_int) -> verbs_context {
    // SAFETY: all-zero is a valid value: every member is an integer, a nullable pointer or an `Option` of a function.
    let mut c: verbs_context = unsafe { std::mem::zeroed() };
    c.query_port = Some(query::query_port_sized);
    c.advise_mr = Some(mr::advise_mr);
    c.alloc_null_mr = Some(null_mr::alloc_null_mr);
    c.create_counters = Some(counters::create_counters);
    c.destroy_counters = Some(counters::destroy_counters);
    c.attach_counters_point_flow = Some(counters::attach_counters_point_flow);
    c.read_counters = Some(counters::read_counters);
    c.alloc_dm = Some(dm::alloc_dm);
    c.free_dm = Some(dm::free_dm);
    c.reg_dm_mr = Some(dm::reg_dm_mr);
    c.alloc_parent_domain = Some(pd::alloc_parent_domain);
    c.alloc_td = Some(pd::alloc_td);
    c.dealloc_td = Some(pd::dealloc_td);
    c.post_srq_ops = Some(tm::post_srq_ops);
    c.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    c.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    c.destroy_wq = Some(wq::destroy_wq);
    c.modify_wq = Some(wq::modify_wq);
    c.create_wq = Some(wq::create_wq);
    c.query_rt_values = Some(query::query_rt_values);
    c.create_cq_ex = Some(cq_ex::create_cq_ex);
    c.query_device_ex = Some(query::query_device_ex);
    c.destroy_flow = Some(flow::destroy_flow);
    c.create_flow = Some(flow::create_flow);
    c.create_qp_ex = Some(qp::create_qp_ex);
    c.create_srq_ex = Some(srq::create_srq_ex);
    c.open_xrcd = Some(xrc::open_xrcd);
    c.close_xrcd = Some(xrc::close_xrcd);
    c.get_srq_num = Some(srq::get_srq_num);
    c.open_qp = Some(xrc::open_qp);
    c.sz = size_of::<verbs_context>();
    c.context.device = device::at(device);
    c.context.ops.query_device = Some(query::ibv_query_device);
    c.context.ops.query_port = Some(query::ibv_query_port);
    c.context.ops.alloc_mw = Some(mw::alloc_mw);
    c.context.ops.bind_mw = Some(mw::bind_mw);
    c.context.ops.dealloc_mw = Some(mw::dealloc_mw);
    c.context.ops.poll_cq = Some(cq::poll_cq);
    c.context.ops.req_notify_cq = Some(cq::req_notify_cq);
    c.context.ops.post_srq_recv = Some(post::post_srq_recv);
    c.context.ops.post_send = Some(post::post_send);
    c.context.ops.post_recv = Some(post::post_recv);
    c.context.cmd_fd = cmd_fd;
    c.context.async_fd = async_fd;
    c.context.num_comp_vectors = COMP_VECTORS;
    c.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    c
}

/// `ibv_open_device(3)`.
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(|| {
        let device = device::number_of(device).ok_or(INVALID)?;
        let ucontext = Arc::new(Ucontext::new(device)?);
        let context = Context::open(ucontext.clone())?;
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|known| known.strong_count() > 0);
        open.push(Arc::downgrade(&ucontext));
        Ok(context)
    })
}

/// `ibv_import_device(3)`: a second context over the objects of one of this process.
pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(|| {
        let wanted = inode(cmd_fd)?;
        let open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let found = open
            .iter()
            .filter_map(std::sync::Weak::upgrade)
            .find(|ucontext| inode(ucontext.cmd_fd.as_raw_fd()) == Ok(wanted));
        drop(open);
        Context::open(found.ok_or_else(|| not_ours(cmd_fd))?)
    })
}

/// Why a descriptor names no context here: one of another process cannot be shared (its memory is not ours to map).
fn not_ours(fd: c_int) -> crate::ffi::Errno {
    let name = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    if name.as_os_str().as_encoded_bytes().starts_with(b"/memfd:peerdma-context") {
        UNSUPPORTED
    } else {
        INVALID
    }
}

/// Device and inode number of an open descriptor.
pub fn inode(fd: c_int) -> Res<(u64, u64)> {
    if fd < 0 {
        return Err(INVALID);
    }
    // SAFETY: a descriptor that is not open makes the call below fail; nothing is closed through the borrow.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = rustix::fs::fstat(borrowed).map_err(|_| INVALID)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// `ibv_close_device(3)`. Nothing of the parent process ends with its context in a forked child.
pub(crate) unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    status(|| {
        if context.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the program passes an open context.
        let whole = unsafe { Context::whole(context) };
        // SAFETY: as above.
        let used_here = unsafe { &*whole }.life.present();
        let ends_here = |device: &hca::Device| device.alive().is_ok() || device.has_failed();
        if used_here.is_ok_and(|life| ends_here(&life.engine.device)) {
            // SAFETY: it came from `Box::into_raw` in `Context::open`, and the program does not use it any more.
            drop(unsafe { Box::from_raw(whole) });
        }
        Ok(())
    })
}
