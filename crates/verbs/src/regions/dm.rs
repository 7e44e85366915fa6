//! Device memory (ibv_alloc_dm(3)): a small memory of the HCA itself, reached without crossing any
//! link. Offsets and lengths are multiples of 4 bytes, as on the hardware that programs know it
//! from.

use crate::base::ffi::{Errno, INVALID, Res, UNSUPPORTED, arg, pointer, quiet, status};
use crate::base::object::{Object, give, object, take_back};
use crate::engine::given::Memory;
use crate::objects::context::{Context, Owned};
use crate::objects::pd::Pd;
use crate::regions::mr;
use mm::{Sink, Source};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use umem::{AccessError, AtomicOp, DmaSpace, Segment, Umem};
use verbs_sys::*;

/// What offsets and lengths of copies are multiples of.
const GRANULE: u64 = 4;
/// Largest alignment that may be asked for, as a power of two: a page, which every allocation has.
const MAX_LOG_ALIGN: u32 = 12;

/// One region over device memory.
struct Region(Arc<Memory>);

impl Drop for Region {
    fn drop(&mut self) {
        self.0.regions.fetch_sub(1, SeqCst);
    }
}

impl DmaSpace for Region {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.0.bytes.read(addr, dst)
    }
    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        self.0.bytes.write(addr, src)
    }
    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.0.bytes.atomic(addr, op)
    }
}

/// Device memory as a program holds it.
#[repr(C)]
pub struct Dm {
    c: UnsafeCell<ibv_dm>,
    memory: Arc<Memory>,
    imported: bool,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Dm {
    type C = ibv_dm;
}

impl Dm {
    fn new(context: &Context, memory: Arc<Memory>, handle: u32, imported: bool) -> Box<Dm> {
        let c = UnsafeCell::new(ibv_dm {
            context: context.as_c(),
            memcpy_to_dm: Some(memcpy_to_dm),
            memcpy_from_dm: Some(memcpy_from_dm),
            comp_mask: 0,
            handle,
        });
        Box::new(Dm { c, memory, imported })
    }
}

/// `ibv_alloc_dm(3)`: ENOMEM when less is left.
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    attr: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (context, attr) = unsafe { (Context::of(context)?, arg(attr)?) };
        if attr.comp_mask != 0 {
            return Err(UNSUPPORTED);
        }
        if attr.length == 0 || attr.log_align_req > MAX_LOG_ALIGN {
            return Err(INVALID);
        }
        let memory = Arc::new(Memory::new(&context.engine().device_memory, attr.length as u64)?);
        let handle = context.ucontext().own(Owned::Dm(memory.clone()));
        Ok(give(Dm::new(context, memory, handle, false)))
    })
}

/// `ibv_free_dm(3)`: EBUSY while a region covers it.
pub(crate) unsafe extern "C" fn free_dm(c: *mut ibv_dm) -> c_int {
    status(|| {
        // SAFETY: the program passes live device memory, whose context is open.
        let (dm, context) = unsafe { (object::<Dm>(c)?, Context::of((*c).context)?) };
        if dm.imported {
            return Err(INVALID);
        }
        if dm.memory.regions.load(SeqCst) > 0 {
            return Err(Errno(libc::EBUSY));
        }
        // SAFETY: the C struct is live.
        context.ucontext().disown(unsafe { (*dm.c.get()).handle });
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Dm>(c) });
        Ok(())
    })
}

/// `ibv_import_dm(3)`.
pub(crate) unsafe extern "C" fn ibv_import_dm(
    context: *mut ibv_context,
    handle: u32,
) -> *mut ibv_dm {
    pointer(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) }?;
        let memory = match context.ucontext().objects().get(&handle) {
            Some(Owned::Dm(memory)) => memory.clone(),
            _ => return Err(Errno(libc::ENOENT)),
        };
        Ok(give(Dm::new(context, memory, handle, true)))
    })
}

/// `ibv_unimport_dm(3)`.
pub(crate) unsafe extern "C" fn ibv_unimport_dm(c: *mut ibv_dm) {
    quiet((), || {
        // SAFETY: the program passes live device memory.
        if unsafe { object::<Dm>(c) }?.imported {
            // SAFETY: it came from `give`, and the program uses it no more.
            drop(unsafe { take_back::<Dm>(c) });
        }
        Ok(())
    });
}

/// Checks a copy: EFAULT outside the memory, EINVAL off the granule.
fn copy_range(dm: &Dm, offset: u64, length: usize) -> Res<Sink<'_>> {
    let length = length as u64;
    let at = dm.memory.bytes.at(offset, length).map_err(|_| Errno(libc::EFAULT))?;
    if !offset.is_multiple_of(GRANULE) || !length.is_multiple_of(GRANULE) {
        return Err(INVALID);
    }
    Ok(at)
}

unsafe extern "C" fn memcpy_to_dm(
    dm: *mut ibv_dm,
    offset: u64,
    host: *const c_void,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes live device memory.
        let dm = unsafe { object::<Dm>(dm) }?;
        let to = copy_range(dm, offset, length)?;
        // SAFETY: the program passes memory to copy from.
        let from = unsafe { Source::vouched(host as u64, length as u64) };
        to.copy_from(from).map_err(|_| Errno(libc::EFAULT))
    })
}

unsafe extern "C" fn memcpy_from_dm(
    host: *mut c_void,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes live device memory.
        let dm = unsafe { object::<Dm>(dm) }?;
        let from = copy_range(dm, offset, length)?;
        // SAFETY: the program passes memory to copy to.
        let to = unsafe { Sink::vouched(host as u64, length as u64) };
        to.copy_from(from.source()).map_err(|_| Errno(libc::EFAULT))
    })
}

/// `ibv_reg_dm_mr(3)`, in the order of `UVERBS_METHOD_DM_MR_REG`: the zero-based right, the others,
/// the range.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    access: c_uint,
) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live PD and live device memory.
        let (pd, dm) = unsafe { (object::<Pd>(pd)?, object::<Dm>(dm)?) };
        let access = mr::zero_based(access)?;
        if !dm.memory.bytes.holds(offset, length as u64) {
            return Err(INVALID);
        }
        dm.memory.regions.fetch_add(1, SeqCst);
        let segment = Segment {
            space: Arc::new(Region(dm.memory.clone())),
            addr: offset,
            len: length as u64,
            route: Arc::new(pcie::Route::local()),
        };
        let umem = Umem::from_segments(vec![segment], access.wants_write());
        mr::reg_device(pd, umem, length as u64, access)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_counts_as_long_as_it_lives() {
        let memory = Arc::new(Memory::new(&Arc::default(), 64).unwrap());
        memory.regions.fetch_add(1, SeqCst);
        let region = Region(memory.clone());
        assert_eq!(region.write(60, &[0; 4]), Ok(()));
        assert_eq!(region.write(60, &[0; 8]), Err(AccessError::OutOfRange));
        drop(region);
        assert_eq!(memory.regions.load(SeqCst), 0);
    }
}
