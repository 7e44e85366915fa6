//! A signal that the kernel sends to a thread for what it did itself, and that the program is not
//! to see: its default action may end it.

/// Runs `act`; a signal of this number that it causes never reaches the program. One that waited
/// before still waits.
pub fn without<T>(number: libc::c_int, act: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero bytes are valid signal sets, which the calls below fill.
    let (mut signal, mut before, mut pending): (libc::sigset_t, libc::sigset_t, libc::sigset_t) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: live local sets, a valid signal; the mask changed is this thread's.
    let (blocked, waited) = unsafe {
        libc::sigemptyset(&mut signal);
        libc::sigaddset(&mut signal, number);
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, &signal, &mut before) == 0;
        let known = libc::sigpending(&mut pending) == 0;
        (blocked, known && libc::sigismember(&pending, number) == 1)
    };
    let result = act();
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: as above; the signal, if there is one, is taken out of this thread's queue before the
    // mask is as it was.
    unsafe {
        if blocked && !waited {
            let errno = *libc::__errno_location();
            libc::sigtimedwait(&signal, std::ptr::null_mut(), &now);
            *libc::__errno_location() = errno;
        }
        if blocked {
            libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        }
    }
    result
}
