//! The edge between C and Rust: errno, the ways verbs report failure, and panics.
//!
//! Every function that C calls runs its body inside one of [`status`], [`coded`], [`count`],
//! [`pointer`] or [`quiet`]. They turn an [`Errno`] into what the function's manual page says, and
//! a panic (a bug of ours) into EIO: nothing unwinds into C, nothing aborts the host program. What
//! succeeds leaves errno as it was, whatever system calls it took: librdmacm's streams set it
//! before they post, and read it after. Inside, a thread is not cancelled (pthread_cancel(3)): that
//! would unwind it with our locks held, through frames that must not be unwound; the bodies of
//! [`quick_status`] and [`quick_count`] see to that themselves. Verbs that wait for events wait
//! outside.

use crate::base::spare;
use engine_thread::Uncancelled;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An error number of the C library.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Errno(pub c_int);

/// Result of the body of a verb.
pub type Res<T> = Result<T, Errno>;

/// A wrong argument.
pub const INVALID: Errno = Errno(libc::EINVAL);
/// The device does not have this.
pub const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

impl From<hca::Error> for Errno {
    fn from(error: hca::Error) -> Errno {
        let _line = Uncancelled::begin();
        crate::log!("{error}");
        Errno(match error {
            hca::Error::Invalid(_) => libc::EINVAL,
            hca::Error::NoMemory(_) => libc::ENOMEM,
            hca::Error::NotSupported(_) => libc::EOPNOTSUPP,
            hca::Error::Busy(_) => libc::EBUSY,
            hca::Error::Access(_) => libc::EACCES,
            hca::Error::Unreachable(_) => libc::ENETUNREACH,
            hca::Error::Lost(_) => libc::EIO,
            hca::Error::System(errno, _) => errno,
        })
    }
}

/// The calling thread's errno as an [`Errno`].
pub fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Sets the calling thread's errno.
pub fn set_errno(errno: Errno) {
    // SAFETY: the C library's errno location is valid for the calling thread.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Runs `body`; a panic becomes EIO. Success leaves errno as it was.
pub fn contained<T>(body: impl FnOnce() -> Res<T>) -> Res<T> {
    let _whole = Uncancelled::begin();
    unbroken(body)
}

/// The same for a body in which nothing is a cancellation point but what sees to that itself, as
/// the calls that programs make most are: to keep cancellation off takes a good part of what they
/// do.
fn unbroken<T>(body: impl FnOnce() -> Res<T>) -> Res<T> {
    // SAFETY: the C library's errno location is valid for the calling thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; nobody keeps a reference to it.
    let before = unsafe { errno.read() };
    let done = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno(libc::EIO)));
    if done.is_ok() {
        // SAFETY: as above.
        unsafe { errno.write(before) };
    }
    done
}

/// For verbs that return 0 or the error number. errno is set as well, as libibverbs does.
pub fn status(body: impl FnOnce() -> Res<()>) -> c_int {
    status_of(contained(body))
}

/// As [`status`], for [`unbroken`] bodies.
pub fn quick_status(body: impl FnOnce() -> Res<()>) -> c_int {
    status_of(unbroken(body))
}

fn status_of(done: Res<()>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

/// For verbs that return a number, or −1 with errno set.
pub fn count(body: impl FnOnce() -> Res<c_int>) -> c_int {
    count_of(contained(body))
}

/// As [`count`], for [`unbroken`] bodies.
pub fn quick_count(body: impl FnOnce() -> Res<c_int>) -> c_int {
    count_of(unbroken(body))
}

fn count_of(done: Res<c_int>) -> c_int {
    match done {
        Ok(count) => count,
        Err(errno) => {
            set_errno(errno);
            -1
        }
    }
}

/// For verbs that return a pointer, or NULL with errno set. They make something, which needs
/// memory.
pub fn pointer<T>(body: impl FnOnce() -> Res<*mut T>) -> *mut T {
    match contained(|| spare::check().and_then(|()| body())) {
        Ok(pointer) => pointer,
        Err(errno) => {
            set_errno(errno);
            std::ptr::null_mut()
        }
    }
}

/// For verbs that return 0, or a code of their own with errno set; `failed` is the code of a panic.
pub fn coded(failed: c_int, body: impl FnOnce() -> Result<(), (c_int, Errno)>) -> c_int {
    let (code, errno) = match contained(|| Ok(body())) {
        Ok(Ok(())) => return 0,
        Ok(Err(refused)) => refused,
        Err(errno) => (failed, errno),
    };
    set_errno(errno);
    code
}

/// For verbs that cannot report failure: `failed` is returned then.
pub fn quiet<T>(failed: T, body: impl FnOnce() -> Res<T>) -> T {
    contained(body).unwrap_or(failed)
}

/// Reads an argument struct.
///
/// # Safety
/// `pointer` is null or points to a live `T` that nothing writes meanwhile.
pub unsafe fn arg<'a, T>(pointer: *const T) -> Res<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(INVALID)
}

/// An argument struct to write to.
///
/// # Safety
/// `pointer` is null or points to a live `T` that nothing else uses meanwhile.
pub unsafe fn arg_mut<'a, T>(pointer: *mut T) -> Res<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or(INVALID)
}

/// Copies at most `room` bytes of `value` to `to`: how verbs answer programs built against an older
/// header.
///
/// # Safety
/// `to` is valid for `room` bytes of writes.
pub unsafe fn copy_sized<T: Copy>(value: &T, to: *mut T, room: usize) {
    let len = room.min(size_of::<T>());
    // SAFETY: `value` has `size_of::<T>()` bytes and the caller promises `room` at `to`; a fresh
    // local cannot overlap.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), to.cast::<u8>(), len)
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_of_failing_is_the_one_of_the_manual_page() {
        set_errno(Errno(0));
        assert_eq!(status(|| Err(INVALID)), libc::EINVAL);
        assert_eq!(last_errno(), INVALID);
        assert_eq!(count(|| Err(UNSUPPORTED)), -1);
        assert_eq!(last_errno(), UNSUPPORTED);
        assert!(pointer::<u8>(|| Err(INVALID)).is_null());
        assert_eq!(last_errno(), INVALID);
        assert_eq!(quiet(7, || Err(INVALID)), 7);
        assert_eq!(coded(7, || Err((3, UNSUPPORTED))), 3);
        assert_eq!(last_errno(), UNSUPPORTED);
        assert_eq!(status(|| Ok(())), 0);
    }

    #[test]
    fn a_panic_is_eio() {
        assert_eq!(status(|| panic!("expected in this test")), libc::EIO);
        assert_eq!(coded(7, || panic!("expected in this test")), 7);
    }

    #[test]
    fn success_leaves_errno_alone() {
        let before = Errno(libc::EWOULDBLOCK);
        set_errno(before);
        fn stray<T>(value: T) -> Result<T, Errno> {
            set_errno(INVALID);
            Ok(value)
        }
        status(|| stray(()));
        count(|| stray(1));
        pointer(|| stray(std::ptr::dangling_mut::<u8>()));
        quiet(7, || stray(0));
        coded(7, || stray(()).map_err(|errno| (7, errno)));
        assert_eq!(last_errno(), before);
    }

    #[test]
    fn a_short_struct_gets_its_beginning_only() {
        let mut bytes = [0xffu8; 8];
        // SAFETY: 3 bytes fit.
        unsafe { copy_sized(&0x1122_3344_5566_7788u64, bytes.as_mut_ptr().cast(), 3) };
        assert_eq!(bytes, [0x88, 0x77, 0x66, 0xff, 0xff, 0xff, 0xff, 0xff]);
    }
}
