//! `ibv_get_sysfs_path` and `ibv_read_sysfs_file`, which librdmacm and the example programs use.
//! The files of our own device come from the interposed `open` like everyone else's.

use crate::base::ffi::{Errno, INVALID, Res, count, last_errno};
use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;

/// Where sysfs is mounted: `SYSFS_PATH` unless set-uid, else `/sys`.
pub(crate) extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    static PATH: OnceLock<CString> = OnceLock::new();
    PATH.get_or_init(|| {
        // SAFETY: these calls have no preconditions.
        let trusted = unsafe { libc::getuid() == libc::geteuid() };
        let from_env = trusted.then(|| std::env::var("SYSFS_PATH").ok()).flatten();
        from_env
            .and_then(|path| CString::new(path.trim_end_matches('/')).ok())
            .unwrap_or_else(|| c"/sys".to_owned())
    })
    .as_ptr()
}

/// Reads `dir/file` into `buf` with a final newline replaced by NUL. Returns the length, or −1
/// (also when the terminating NUL would not fit).
pub(crate) unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    count(|| {
        if dir.is_null() || file.is_null() || buf.is_null() {
            return Err(INVALID);
        }
        // SAFETY: not null, so NUL-terminated strings by the caller's contract.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        let path = [dir.to_bytes(), b"/", file.to_bytes()].concat();
        let path = CString::new(path).map_err(|_| INVALID)?;
        // SAFETY: the caller provides `size` bytes at `buf`.
        unsafe { read_line(&path, buf.cast(), size) }
    })
}

/// # Safety
/// `buf` is valid for `size` bytes of writes.
unsafe fn read_line(path: &CStr, buf: *mut u8, size: usize) -> Res<c_int> {
    // SAFETY: `path` is NUL-terminated.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: `fd` was just opened and belongs to nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: `buf` is valid for `size` bytes by contract.
    let len = unsafe { libc::read(fd.as_raw_fd(), buf.cast(), size) };
    let Ok(mut len) = usize::try_from(len) else { return Err(last_errno()) };
    if len == 0 {
        return Ok(0);
    }
    // SAFETY: `len` bytes, at least one and at most `size`, were just written.
    if unsafe { *buf.add(len - 1) } == b'\n' {
        len -= 1;
    } else if len == size {
        return Err(Errno(libc::EOVERFLOW));
    }
    // SAFETY: `len` is below `size` in both cases.
    unsafe { *buf.add(len) = 0 };
    c_int::try_from(len).map_err(|_| INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &CStr, size: usize) -> (c_int, [u8; 16]) {
        let mut buf = [0xffu8; 16];
        // SAFETY: `size` is at most 16.
        let len = unsafe {
            ibv_read_sysfs_file(
                c"/proc/sys/kernel".as_ptr(),
                file.as_ptr(),
                buf.as_mut_ptr().cast(),
                size,
            )
        };
        (len, buf)
    }

    #[test]
    fn a_line_loses_its_newline_and_must_fit() {
        let (len, buf) = read(c"ostype", 16);
        assert_eq!((len, &buf[..6]), (5, &b"Linux\0"[..]));
        assert_eq!(read(c"ostype", 5).0, -1);
        assert_eq!(read(c"ostype", 6).0, 5);
        assert_eq!(read(c"no-such-file", 16).0, -1);
        assert_eq!(last_errno(), Errno(libc::ENOENT));
    }

    #[test]
    fn null_is_einval() {
        // SAFETY: null is allowed.
        let len = unsafe {
            ibv_read_sysfs_file(std::ptr::null(), std::ptr::null(), std::ptr::null_mut(), 0)
        };
        assert_eq!((len, last_errno()), (-1, INVALID));
    }
}
