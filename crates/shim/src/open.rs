//! Opening files and directories: `open`, `fopen`, `opendir` and their kin.
//!
//! An attribute of ours is opened in the tree, or, when a provider has an answer, as an anonymous
//! file that holds it; so is what the machine's file and the tree's say together. Our files are
//! read-only, also to root, as the kernel's attributes are. A uverbs node exists but cannot be
//! opened: nothing speaks the kernel's command ABI behind it. `rdma_cm` can (`rdma_cm`).
//!
//! Most of these are cancellation points: a thread cancelled inside the C library unwinds through
//! the frames here, hence `C-unwind`.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::FromRawFd as _;

use libc::{AT_FDCWD, DIR, FILE, dirent, glob_t, mode_t};

use crate::drm;
use crate::errno::{fail, keeping_errno};
use crate::rdma_cm;
use crate::redirect::{self, Node, Target};

/// Answers the content of a changing attribute, named like
/// `class/infiniband/peerdma0/ports/1/gids/0` or
/// `kernel/mm/memory_peers/peerdma_gpu/num_alloc_mrs`; None leaves it to the file in the tree.
pub type Provider = fn(&str) -> Option<Vec<u8>>;

static PROVIDER: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Sets who answers changing attributes. It is called in the thread that opens one, and may itself
/// open files.
pub fn set_provider(provider: Provider) {
    PROVIDER.store(provider as *mut c_void, Ordering::Release);
}

/// In a forked child: the provider's engine is not here.
pub(crate) fn forget_provider() {
    PROVIDER.store(null_mut(), Ordering::Relaxed);
}

fn provided(target: &Target) -> Option<Vec<u8>> {
    let provider = PROVIDER.load(Ordering::Acquire);
    if provider.is_null() {
        return None;
    }
    // SAFETY: not null, so stored by `set_provider` from this type.
    let provider = unsafe { core::mem::transmute::<*mut c_void, Provider>(provider) };
    provider(&target.attribute()?)
}

impl Target {
    /// `open(2)` of what this leads to.
    fn open(&self, flags: c_int) -> c_int {
        if let Some(node) = self.node
            && flags & libc::O_PATH == 0
            && self.exists()
        {
            return match node {
                Node::Uverbs(_) => fail(libc::ENXIO),
                Node::RdmaCm => rdma_cm::open(flags),
                Node::Drm(minor) => drm::open(minor, flags),
            };
        }
        if let Some(machines) = self.behind {
            return self.open_behind(machines, flags);
        }
        let changes = libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL | libc::O_ACCMODE;
        let writes = flags & (libc::O_CREAT | libc::O_TRUNC | libc::O_ACCMODE) != 0
            && flags & libc::O_PATH == 0;
        if !writes
            && flags & (libc::O_DIRECTORY | libc::O_PATH) == 0
            && let Some(content) = keeping_errno(|| provided(self))
        {
            return anonymous(&content, flags).unwrap_or_else(|| fail(libc::ENOMEM));
        }
        let flags = if flags & libc::O_PATH == 0 { flags & !changes } else { flags };
        let fd = system!(SYS_openat, AT_FDCWD, self.as_ptr(), flags, 0) as c_int;
        if fd >= 0 && writes {
            system!(SYS_close, fd);
            return fail(libc::EACCES);
        }
        if fd >= 0 {
            redirect::entered_tree();
        }
        fd
    }

    /// The machine's file and the lines of the tree's that it lacks, to read. For anything else,
    /// and where that cannot be had, there is the machine's.
    fn open_behind(&self, machines: &CStr, flags: c_int) -> c_int {
        let other =
            libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC | libc::O_DIRECTORY | libc::O_PATH;
        let both = || {
            let mut content = content_of(machines)?;
            let own = content_of(&self.path)?;
            for line in own.split_inclusive(|byte| *byte == b'\n') {
                if !has_symbol_of(&content, line) {
                    content.extend_from_slice(line);
                }
            }
            anonymous(&content, flags)
        };
        let found = if flags & other == 0 { keeping_errno(both) } else { None };
        let machines = || system!(SYS_openat, AT_FDCWD, machines.as_ptr(), flags, 0) as c_int;
        found.unwrap_or_else(machines)
    }

    fn exists(&self) -> bool {
        keeping_errno(|| system!(SYS_faccessat, AT_FDCWD, self.as_ptr(), libc::F_OK)) == 0
    }
}

/// Whether `content` tells of the function that `line` does, `ADDRESS T NAME<tab>[MODULE]`, at any
/// address.
fn has_symbol_of(content: &[u8], line: &[u8]) -> bool {
    let name = |line| <[u8]>::split(line, |byte| matches!(byte, b' ' | b'\t')).nth(2);
    let wanted = name(line);
    content.split(|byte| *byte == b'\n').any(|line| name(line) == wanted)
}

/// What stands in a file; past the functions here, which would lead back.
fn content_of(path: &CStr) -> Option<Vec<u8>> {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let fd = system!(SYS_openat, AT_FDCWD, path.as_ptr(), flags, 0) as c_int;
    if fd < 0 {
        return None;
    }
    // SAFETY: opened just now, for nobody else.
    let mut file = unsafe { File::from_raw_fd(fd) };
    let mut content = Vec::new();
    file.read_to_end(&mut content).ok()?;
    Some(content)
}

/// A descriptor from which `content` can be read, and that is opened with these flags of `open(2)`.
fn anonymous(content: &[u8], flags: c_int) -> Option<c_int> {
    let fd = system!(SYS_memfd_create, c"peerdma-sysfs".as_ptr(), libc::MFD_CLOEXEC) as c_int;
    if fd < 0 {
        return None;
    }
    // SAFETY: made just now, for nobody else.
    let mut file = unsafe { File::from_raw_fd(fd) };
    // The program's limit on what it writes is not for this.
    engine_thread::growing_files(|| file.write_all(content)).ok()?;
    let path = CString::new(format!("/proc/self/fd/{fd}")).ok()?;
    let flags = flags & (libc::O_CLOEXEC | libc::O_NONBLOCK) | libc::O_RDONLY;
    let read_only = system!(SYS_openat, AT_FDCWD, path.as_ptr(), flags, 0) as c_int;
    (read_only >= 0).then_some(read_only)
}

/// Variadic in C. Its third argument is passed in the same register as a named one on the
/// architectures supported, and means nothing unless the flags ask for it.
macro_rules! open_functions {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            // SAFETY: a C string by the function's contract.
            match unsafe { redirect::find_to_open(AT_FDCWD, path) } {
                Some(target) => target.open(flags),
                None => pass!(OPEN(path, flags, mode), SYS_openat, AT_FDCWD, path, flags, mode),
            }
        }
    )*};
}

macro_rules! openat_functions {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            directory: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            // SAFETY: a C string by the function's contract.
            match unsafe { redirect::find_to_open(directory, path) } {
                Some(target) => target.open(flags),
                None => pass!(
                    OPENAT(directory, path, flags, mode),
                    SYS_openat,
                    directory,
                    path,
                    flags,
                    mode
                ),
            }
        }
    )*};
}

open_functions!(open open64);
openat_functions!(openat openat64);

/// The checked forms that `_FORTIFY_SOURCE` calls when no mode is given.
macro_rules! checked_open_functions {
    ($($open:ident $openat:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $open(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the caller's arguments.
            unsafe { open(path, flags, 0) }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $openat(
            directory: c_int,
            path: *const c_char,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the caller's arguments.
            unsafe { openat(directory, path, flags, 0) }
        }
    )*};
}

checked_open_functions!(__open_2 __openat_2 __open64_2 __openat64_2);

macro_rules! creat_functions {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(path: *const c_char, mode: mode_t) -> c_int {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            // SAFETY: a C string by the function's contract.
            match unsafe { redirect::find(path) } {
                Some(target) => target.open(flags),
                None => pass!(CREAT(path, mode), SYS_openat, AT_FDCWD, path, flags, mode),
            }
        }
    )*};
}

creat_functions!(creat creat64);

/// The flags of an `fopen` mode; None where the C library would refuse it.
fn mode_flags(mode: &CStr) -> Option<c_int> {
    let bytes = mode.to_bytes();
    let (&first, rest) = bytes.split_first()?;
    // What follows a comma names a character set.
    let rest = rest.split(|&byte| byte == b',').next().unwrap_or_default();
    let mut flags = match first {
        b'r' => libc::O_RDONLY,
        b'w' => libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    if rest.contains(&b'+') {
        flags = flags & !libc::O_ACCMODE | libc::O_RDWR;
    }
    if rest.contains(&b'e') {
        flags |= libc::O_CLOEXEC;
    }
    Some(flags)
}

macro_rules! fopen_functions {
    ($($fopen:ident $freopen:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $fopen(path: *const c_char, mode: *const c_char) -> *mut FILE {
            // SAFETY: C strings by the function's contract.
            match unsafe { redirect::find_to_open(AT_FDCWD, path) } {
                // SAFETY: as above.
                Some(target) => unsafe { fopen_target(&target, mode) },
                None => pass_or!(FOPEN(path, mode), null_mut()),
            }
        }

        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $freopen(
            path: *const c_char,
            mode: *const c_char,
            file: *mut FILE,
        ) -> *mut FILE {
            // SAFETY: C strings by the function's contract.
            match unsafe { redirect::find_to_open(AT_FDCWD, path) } {
                // SAFETY: as above, and a stream of the program's.
                Some(target) => unsafe { freopen_target(&target, mode, file) },
                None => pass_or!(FREOPEN(path, mode, file), null_mut()),
            }
        }
    )*};
}

fopen_functions!(fopen freopen fopen64 freopen64);

/// # Safety
/// `mode` is NUL-terminated.
unsafe fn fopen_target(target: &Target, mode: *const c_char) -> *mut FILE {
    // SAFETY: as the caller promises.
    let Some(flags) = mode_flags(unsafe { CStr::from_ptr(mode) }) else {
        fail::<i64>(libc::EINVAL);
        return null_mut();
    };
    let fd = target.open(flags);
    if fd < 0 {
        return null_mut();
    }
    // SAFETY: a descriptor opened just now for what the mode asks.
    let file = unsafe { libc::fdopen(fd, mode) };
    if file.is_null() {
        system!(SYS_close, fd);
    }
    file
}

/// # Safety
/// `mode` is NUL-terminated, `file` an open stream.
unsafe fn freopen_target(target: &Target, mode: *const c_char, file: *mut FILE) -> *mut FILE {
    // SAFETY: as the caller promises.
    let flags = mode_flags(unsafe { CStr::from_ptr(mode) });
    let (Some(_), Some(flags)) = (target.behind, flags) else {
        return pass_or!(FREOPEN(target.as_ptr(), mode, file), null_mut());
    };
    let fd = target.open(flags);
    let path = CString::new(format!("/proc/self/fd/{fd}")).unwrap_or_default();
    let opened = pass_or!(FREOPEN(path.as_ptr(), mode, file), null_mut());
    if fd >= 0 {
        keeping_errno(|| system!(SYS_close, fd));
    }
    opened
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn opendir(path: *const c_char) -> *mut DIR {
    // SAFETY: a C string by the function's contract.
    let Some(target) = (unsafe { redirect::find(path) }) else {
        return pass_or!(OPENDIR(path), null_mut());
    };
    let fd = target.open(libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC | libc::O_NONBLOCK);
    if fd < 0 {
        return null_mut();
    }
    // SAFETY: a descriptor of a directory opened just now.
    let directory = unsafe { libc::fdopendir(fd) };
    if directory.is_null() {
        system!(SYS_close, fd);
    }
    directory
}

macro_rules! scandir_functions {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            list: *mut *mut *mut dirent,
            filter: Option<unsafe extern "C" fn(*const dirent) -> c_int>,
            compare: Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>,
        ) -> c_int {
            // SAFETY: a C string by the function's contract.
            match unsafe { redirect::find(path) } {
                Some(target) => pass_or!(SCANDIR(target.as_ptr(), list, filter, compare), -1),
                None => pass_or!(SCANDIR(path, list, filter, compare), -1),
            }
        }
    )*};
}

scandir_functions!(scandir scandir64);

macro_rules! glob_functions {
    ($($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C-unwind" fn $name(
            pattern: *const c_char,
            flags: c_int,
            on_error: Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>,
            found: *mut glob_t,
        ) -> c_int {
            // SAFETY: a C string by the function's contract.
            let Some(target) = (unsafe { redirect::find(pattern) }) else {
                return pass_or!(GLOB(pattern, flags, on_error, found), libc::GLOB_ABORTED);
            };
            let code = pass_or!(GLOB(target.as_ptr(), flags, on_error, found), libc::GLOB_ABORTED);
            if code == 0 {
                // SAFETY: filled by the call above.
                unsafe { restore_paths(&*found, flags) };
            }
            code
        }
    )*};
}

glob_functions!(glob glob64);

/// # Safety
/// `found` was filled by a successful `glob` with `flags`.
unsafe fn restore_paths(found: &glob_t, flags: c_int) {
    let first = if flags & libc::GLOB_DOOFFS != 0 { found.gl_offs } else { 0 };
    for index in first..first.saturating_add(found.gl_pathc) {
        // SAFETY: `gl_pathc` strings of the allocator's stand behind the reserved places.
        unsafe { redirect::restore(*found.gl_pathv.add(index)) };
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn chdir(path: *const c_char) -> c_int {
    // SAFETY: a C string by the function's contract.
    match unsafe { redirect::find(path) } {
        Some(target) => {
            redirect::entered_tree();
            system!(SYS_chdir, target.as_ptr()) as c_int
        }
        None => pass!(CHDIR(path), SYS_chdir, path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fopen_modes_become_flags() {
        assert_eq!(mode_flags(c"r"), Some(libc::O_RDONLY));
        assert_eq!(mode_flags(c"rbe"), Some(libc::O_RDONLY | libc::O_CLOEXEC));
        assert_eq!(mode_flags(c"r+"), Some(libc::O_RDWR));
        assert_eq!(mode_flags(c"w+"), Some(libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC));
        assert_eq!(mode_flags(c"r,ccs=UTF-8e"), Some(libc::O_RDONLY));
        assert_eq!(mode_flags(c"q"), None);
        assert_eq!(mode_flags(c""), None);
    }

    #[test]
    fn a_symbol_is_known_by_its_whole_name() {
        let line = b"0000000000000000 T ib_umem_dmabuf_get\t[ib_uverbs]\n";
        let has = |content: &[u8]| has_symbol_of(content, line);
        assert!(has(b"0 T a\nffffffffc0001000 t ib_umem_dmabuf_get\t[ib_core]\n"));
        assert!(has(b"0 T ib_umem_dmabuf_get"));
        assert!(!has(b"0 T ib_umem_dmabuf_get_pinned\t[ib_uverbs]\n0 T get\n\n"));
        assert!(!has(b""));
    }
}
