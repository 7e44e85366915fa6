//! Cancellation (pthread_cancel(3)), kept out of our own frames: it would unwind them with locks
//! held, and frames that must not be unwound.
//!
//! A thread is cancelled only where it calls what the C library has for a cancellation point. So
//! what calls none needs nothing of this, and what may call one does so while an [`Uncancelled`]
//! lives.

use std::ffi::c_int;

unsafe extern "C" {
    /// pthread_setcancelstate(3).
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// While it lives, a cancellation of this thread waits.
#[derive(Debug)]
pub struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    /// From now on.
    #[must_use = "it ends as it is dropped"]
    pub fn begin() -> Uncancelled {
        let mut before = 0;
        // SAFETY: `before` is a live local.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &mut before) };
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    fn drop(&mut self) {
        // SAFETY: a state that the thread had; null asks for nothing back.
        unsafe { pthread_setcancelstate(self.before, std::ptr::null_mut()) };
    }
}
