//! XRC domains (ibv_open_xrcd(3)).

use crate::base::ffi::{Errno, INVALID, Res, arg, pointer, status};
use crate::base::fork_state::Made;
use crate::base::object::{Object, give, object, take_back};
use crate::objects::context::{Context, Owned, inode};
use hca::XrcdInit;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use verbs_sys::flags::*;
use verbs_sys::*;

/// One open of an XRC domain.
#[repr(C)]
pub struct Xrcd {
    c: UnsafeCell<ibv_xrcd>,
    hca: Arc<hca::Xrcd>,
    handle: u32,
    made: Made,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Xrcd {
    type C = ibv_xrcd;
}

impl Xrcd {
    /// The HCA's domain.
    pub fn hca(&self) -> &Arc<hca::Xrcd> {
        &self.hca
    }

    /// The context it belongs to; EIO when that was the parent process's.
    pub fn context(&self) -> Res<&Context> {
        self.made.check()?;
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        unsafe { Context::of((*self.c.get()).context) }
    }
}

/// `ibv_open_xrcd(3)`, with the kernel's errors: EBADF for a wrong descriptor, EAGAIN for a file
/// without a domain and no `O_CREAT`, EINVAL for one with a domain and `O_EXCL`.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (context, init) = unsafe { (Context::of(context)?, arg(init)?) };
        const BOTH: u32 = XRCD_INIT_ATTR_FD | XRCD_INIT_ATTR_OFLAGS;
        if init.comp_mask & !BOTH != 0 {
            return Err(Errno(libc::ENOSYS));
        }
        if init.comp_mask != BOTH || init.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
            return Err(INVALID);
        }
        let inode = match init.fd {
            -1 => None,
            fd => Some(inode(fd).map_err(|_| Errno(libc::EBADF))?),
        };
        let hca = context.device().open_xrcd(XrcdInit {
            inode,
            create: init.oflags & libc::O_CREAT != 0,
            exclusive: init.oflags & libc::O_EXCL != 0,
        })?;
        let handle = context.ucontext().own(Owned::Xrcd(hca.clone()));
        let c = UnsafeCell::new(ibv_xrcd { context: context.as_c() });
        Ok(give(Box::new(Xrcd { c, hca, handle, made: Made::now() })))
    })
}

/// `ibv_close_xrcd(3)`: EBUSY while a queue pair or shared receive queue made from it is there.
pub(crate) unsafe extern "C" fn close_xrcd(c: *mut ibv_xrcd) -> c_int {
    status(|| {
        // SAFETY: the program passes a live domain.
        let xrcd = unsafe { object::<Xrcd>(c) }?;
        let context = xrcd.context()?;
        xrcd.hca.close()?;
        context.ucontext().disown(xrcd.handle);
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Xrcd>(c) });
        Ok(())
    })
}
