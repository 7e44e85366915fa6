//! Asking about files without opening them: `stat`, `access`, `readlink`, `realpath` and extended
//! attributes.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;

use libc::{AT_FDCWD, AT_SYMLINK_NOFOLLOW, size_t, ssize_t};

use crate::errno::fail;
use crate::redirect::{self, Node, Target};

impl Target {
    /// A node is a link in the tree and a device to the program.
    fn follow(&self, flags: c_int) -> c_int {
        if self.node.is_some() { flags & !AT_SYMLINK_NOFOLLOW } else { flags }
    }

    /// # Safety
    /// `buffer` is writable.
    unsafe fn stat(&self, buffer: *mut libc::stat, flags: c_int) -> c_int {
        let code =
            system!(SYS_newfstatat, AT_FDCWD, self.as_ptr(), buffer, self.follow(flags)) as c_int;
        if let (0, Some(node)) = (code, self.node) {
            // SAFETY: filled by the call above.
            unsafe { (*buffer).st_rdev = node.device() };
        }
        code
    }

    fn access(&self, mode: c_int) -> c_int {
        system!(SYS_faccessat, AT_FDCWD, self.as_ptr(), mode) as c_int
    }

    fn readlink(&self, buffer: *mut c_char, size: size_t) -> ssize_t {
        match self.node {
            Some(_) if self.access(libc::F_OK) == 0 => fail(libc::EINVAL),
            _ => system!(SYS_readlinkat, AT_FDCWD, self.as_ptr(), buffer, size) as ssize_t,
        }
    }
}

macro_rules! stat_functions {
    ($($name:ident $next:ident $flags:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, buffer: *mut libc::stat) -> c_int {
            // SAFETY: a C string by the function's contract.
            match unsafe { redirect::find(path) } {
                // SAFETY: the caller's buffer.
                Some(target) => unsafe { target.stat(buffer, $flags) },
                None => pass!($next(path, buffer), SYS_newfstatat, AT_FDCWD, path, buffer, $flags),
            }
        }
    )*};
}

stat_functions! {
    stat STAT 0;
    stat64 STAT 0;
    lstat LSTAT AT_SYMLINK_NOFOLLOW;
    lstat64 LSTAT AT_SYMLINK_NOFOLLOW;
}

/// The forms that programs built before glibc 2.33 call. The version says the structure's layout,
/// of which these architectures have one.
macro_rules! xstat_functions {
    ($($name:ident $next:ident $flags:expr;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            version: c_int,
            path: *const c_char,
            buffer: *mut libc::stat,
        ) -> c_int {
            // SAFETY: a C string by the function's contract.
            match unsafe { redirect::find(path) } {
                // SAFETY: the caller's buffer.
                Some(target) => unsafe { target.stat(buffer, $flags) },
                None => pass!(
                    $next(version, path, buffer),
                    SYS_newfstatat,
                    AT_FDCWD,
                    path,
                    buffer,
                    $flags
                ),
            }
        }
    )*};
}

xstat_functions! {
    __xstat XSTAT 0;
    __xstat64 XSTAT 0;
    __lxstat LXSTAT AT_SYMLINK_NOFOLLOW;
    __lxstat64 LXSTAT AT_SYMLINK_NOFOLLOW;
}

macro_rules! fstatat_functions {
    ($($fstatat:ident $fxstatat:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $fstatat(
            directory: c_int,
            path: *const c_char,
            buffer: *mut libc::stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: a C string by the function's contract.
            match unsafe { redirect::find(path) } {
                // SAFETY: the caller's buffer.
                Some(target) => unsafe { target.stat(buffer, flags) },
                None => pass!(
                    FSTATAT(directory, path, buffer, flags),
                    SYS_newfstatat,
                    directory,
                    path,
                    buffer,
                    flags
                ),
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $fxstatat(
            version: c_int,
            directory: c_int,
            path: *const c_char,
            buffer: *mut libc::stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: a C string by the function's contract.
            match unsafe { redirect::find(path) } {
                // SAFETY: the caller's buffer.
                Some(target) => unsafe { target.stat(buffer, flags) },
                None => pass!(
                    FXSTATAT(version, directory, path, buffer, flags),
                    SYS_newfstatat,
                    directory,
                    path,
                    buffer,
                    flags
                ),
            }
        }
    )*};
}

fstatat_functions!(fstatat __fxstatat fstatat64 __fxstatat64);

#[unsafe(no_mangle)]
unsafe extern "C" fn statx(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mask: u32,
    buffer: *mut libc::statx,
) -> c_int {
    // SAFETY: a C string by the function's contract.
    let Some(target) = (unsafe { redirect::find(path) }) else {
        return pass!(
            STATX(directory, path, flags, mask, buffer),
            SYS_statx,
            directory,
            path,
            flags,
            mask,
            buffer
        );
    };
    let code =
        system!(SYS_statx, AT_FDCWD, target.as_ptr(), target.follow(flags), mask, buffer) as c_int;
    if let (0, Some(node)) = (code, target.node) {
        let device = node.device();
        // SAFETY: filled by the call above.
        unsafe {
            (*buffer).stx_rdev_major = libc::major(device);
            (*buffer).stx_rdev_minor = libc::minor(device);
        }
    }
    code
}

#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: a C string by the function's contract.
    match unsafe { redirect::find(path) } {
        Some(target) => target.access(mode),
        None => pass!(ACCESS(path, mode), SYS_faccessat, AT_FDCWD, path, mode),
    }
}

macro_rules! eaccess_functions {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(path: *const c_char, mode: c_int) -> c_int {
            // SAFETY: a C string by the function's contract.
            match unsafe { redirect::find(path) } {
                Some(target) => target.access(mode),
                None => pass_or!(EACCESS(path, mode), -1),
            }
        }
    )*};
}

eaccess_functions!(eaccess euidaccess);

#[unsafe(no_mangle)]
unsafe extern "C" fn faccessat(
    directory: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    // SAFETY: a C string by the function's contract.
    match unsafe { redirect::find(path) } {
        Some(target) => target.access(mode),
        None => pass_or!(FACCESSAT(directory, path, mode, flags), -1),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readlink(path: *const c_char, buffer: *mut c_char, size: size_t) -> ssize_t {
    // SAFETY: a C string by the function's contract.
    match unsafe { redirect::find(path) } {
        Some(target) => target.readlink(buffer, size),
        None => pass!(READLINK(path, buffer, size), SYS_readlinkat, AT_FDCWD, path, buffer, size),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn readlinkat(
    directory: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    size: size_t,
) -> ssize_t {
    // SAFETY: a C string by the function's contract.
    match unsafe { redirect::find(path) } {
        Some(target) => target.readlink(buffer, size),
        None => pass!(
            READLINKAT(directory, path, buffer, size),
            SYS_readlinkat,
            directory,
            path,
            buffer,
            size
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __readlink_chk(
    path: *const c_char,
    buffer: *mut c_char,
    size: size_t,
    room: size_t,
) -> ssize_t {
    check_room(size, room);
    // SAFETY: the caller's arguments.
    unsafe { readlink(path, buffer, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __readlinkat_chk(
    directory: c_int,
    path: *const c_char,
    buffer: *mut c_char,
    size: size_t,
    room: size_t,
) -> ssize_t {
    check_room(size, room);
    // SAFETY: the caller's arguments.
    unsafe { readlinkat(directory, path, buffer, size) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    // SAFETY: a C string by the function's contract.
    let Some(target) = (unsafe { redirect::find(path) }) else {
        return pass_or!(REALPATH(path, resolved), null_mut());
    };
    if let Some(node) = target.node {
        // SAFETY: as for the function itself.
        return unsafe { node_realpath(&target, node, resolved) };
    }
    let found = pass_or!(REALPATH(target.as_ptr(), resolved), null_mut());
    if !found.is_null() {
        // SAFETY: a string the C library wrote, in the caller's buffer or one allocated for the
        // caller.
        unsafe { redirect::restore(found) };
    }
    found
}

/// # Safety
/// `resolved` is null or holds PATH_MAX bytes.
unsafe fn node_realpath(target: &Target, node: Node, resolved: *mut c_char) -> *mut c_char {
    if target.access(libc::F_OK) != 0 {
        return null_mut();
    }
    let path = node.path();
    // SAFETY: NUL-terminated and far shorter than PATH_MAX.
    unsafe {
        if resolved.is_null() {
            return libc::strdup(path.as_ptr());
        }
        core::ptr::copy_nonoverlapping(path.as_ptr(), resolved, path.count_bytes() + 1);
    }
    resolved
}

#[unsafe(no_mangle)]
unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    resolved: *mut c_char,
    room: size_t,
) -> *mut c_char {
    check_room(libc::PATH_MAX as size_t, room);
    // SAFETY: the caller's arguments.
    unsafe { realpath(path, resolved) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller's argument; null asks for an allocated result.
    unsafe { realpath(path, null_mut()) }
}

/// What `_FORTIFY_SOURCE` does when a buffer is too small for what it is used for.
fn check_room(needed: size_t, room: size_t) {
    unsafe extern "C" {
        fn __chk_fail() -> !;
    }
    if room < needed {
        // SAFETY: ends the process, as the C library does.
        unsafe { __chk_fail() }
    }
}

macro_rules! getxattr_functions {
    ($($name:ident $next:ident $number:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            path: *const c_char,
            attribute: *const c_char,
            value: *mut c_void,
            size: size_t,
        ) -> ssize_t {
            // SAFETY: a C string by the function's contract.
            match unsafe { redirect::find(path) } {
                Some(target) => {
                    system!($number, target.as_ptr(), attribute, value, size) as ssize_t
                }
                None => pass!(
                    $next(path, attribute, value, size),
                    $number,
                    path,
                    attribute,
                    value,
                    size
                ),
            }
        }
    )*};
}

getxattr_functions! {
    getxattr GETXATTR SYS_getxattr;
    lgetxattr LGETXATTR SYS_lgetxattr;
}

macro_rules! listxattr_functions {
    ($($name:ident $next:ident $number:ident;)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            path: *const c_char,
            list: *mut c_char,
            size: size_t,
        ) -> ssize_t {
            // SAFETY: a C string by the function's contract.
            match unsafe { redirect::find(path) } {
                Some(target) => system!($number, target.as_ptr(), list, size) as ssize_t,
                None => pass!($next(path, list, size), $number, path, list, size),
            }
        }
    )*};
}

listxattr_functions! {
    listxattr LISTXATTR SYS_listxattr;
    llistxattr LLISTXATTR SYS_llistxattr;
}
