//! Contexts opened, imported and closed (ibv_open_device(3), ibv_import_device(3)).

use crate::base::ffi::{Errno, INVALID, UNSUPPORTED, pointer, status};
use crate::edge::tables::tables;
use crate::objects::context::{Context, Ucontext, inode};
use crate::platform::device;
use engine_thread::lock;
use std::ffi::c_int;
use std::sync::{Arc, Mutex};
use verbs_sys::{ibv_context, ibv_device};

/// The contexts whose `cmd_fd` an import may name.
static OPEN: Mutex<Vec<std::sync::Weak<Ucontext>>> = Mutex::new(Vec::new());

/// `ibv_open_device(3)`.
pub(crate) unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(|| {
        let device = device::number_of(device).ok_or(INVALID)?;
        let ucontext = Arc::new(Ucontext::new(device)?);
        let context = Context::open(ucontext.clone(), tables)?;
        let mut open = lock(&OPEN);
        open.retain(|known| known.strong_count() > 0);
        open.push(Arc::downgrade(&ucontext));
        Ok(context)
    })
}

/// `ibv_import_device(3)`: a second context over the objects of one of this process.
pub(crate) unsafe extern "C" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context {
    pointer(|| {
        let wanted = inode(cmd_fd)?;
        let open = lock(&OPEN);
        let found = open
            .iter()
            .filter_map(std::sync::Weak::upgrade)
            .find(|ucontext| inode(ucontext.cmd_fd()) == Ok(wanted));
        drop(open);
        Context::open(found.ok_or_else(|| not_ours(cmd_fd))?, tables)
    })
}

/// Why a descriptor names no context here: one of another process cannot be shared (its memory is
/// not ours to map).
fn not_ours(fd: c_int) -> Errno {
    let name = std::fs::read_link(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    if name.as_os_str().as_encoded_bytes().starts_with(b"/memfd:peerdma-context") {
        UNSUPPORTED
    } else {
        INVALID
    }
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
        if unsafe { &*whole }.ends_here() {
            // SAFETY: it came from `Box::into_raw` in `Context::open`, and the program does not use
            // it any more.
            drop(unsafe { Box::from_raw(whole) });
        }
        Ok(())
    })
}
