//! The next definition of each interposed function in the program's lookup order, usually the C
//! library's.

use core::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};

use libc::{DIR, FILE, dirent, glob_t, mode_t, msghdr, off_t, pid_t, sighandler_t};
use libc::{size_t, sockaddr, socklen_t, ssize_t};

/// A function behind ours, of type `F`.
pub(crate) struct Next<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

impl<F: Copy> Next<F> {
    const fn new(name: &'static CStr) -> Next<F> {
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        Next { name, address: AtomicPtr::new(core::ptr::null_mut()), function: PhantomData }
    }

    /// The function, if the constructor found one.
    #[inline]
    pub(crate) fn get(&self) -> Option<F> {
        let address = self.address.load(Relaxed);
        if address.is_null() {
            return None;
        }
        // SAFETY: `F` is a function pointer type, as large as a pointer; the table below names the
        // type of the C function that the dynamic linker found under this name.
        Some(unsafe { core::mem::transmute_copy::<*mut c_void, F>(&address) })
    }

    /// The function, looked up now if need be. For functions without a system call of their own.
    pub(crate) fn resolve(&self) -> Option<F> {
        self.get().or_else(|| {
            self.look_up();
            self.get()
        })
    }

    fn look_up(&self) {
        // SAFETY: NUL-terminated names and the dynamic linker's own handles.
        let address = unsafe {
            let next = libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr());
            if !next.is_null() {
                next
            } else {
                // Loaded behind the C library, or by dlopen: there is no next one, but there is the
                // C library's.
                let libc = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
                if libc.is_null() { libc } else { libc::dlsym(libc, self.name.as_ptr()) }
            }
        };
        self.address.store(address, Relaxed);
    }
}

macro_rules! table {
    ($($name:ident $symbol:literal: fn($($arg:ty),* $(; $dots:tt)?) -> $ret:ty;)*) => {
        $(pub(crate) static $name: Next<
            unsafe extern "C-unwind" fn($($arg),* $(, $dots)?) -> $ret,
        > = Next::new($symbol);)*

        /// Looks every function up.
        pub(crate) fn resolve_all() {
            $($name.look_up();)*
            // A function this C library lacks leaves a message that the program would read as its
            // own. SAFETY: no preconditions.
            unsafe { libc::dlerror() };
        }
    };
}

type Path = *const c_char;
type Filter = Option<unsafe extern "C" fn(*const dirent) -> c_int>;
type Compare = Option<unsafe extern "C" fn(*mut *const dirent, *mut *const dirent) -> c_int>;
type GlobError = Option<unsafe extern "C" fn(Path, c_int) -> c_int>;

table! {
    OPEN c"open": fn(Path, c_int; ...) -> c_int;
    OPENAT c"openat": fn(c_int, Path, c_int; ...) -> c_int;
    CREAT c"creat": fn(Path, mode_t) -> c_int;
    FOPEN c"fopen": fn(Path, Path) -> *mut FILE;
    FREOPEN c"freopen": fn(Path, Path, *mut FILE) -> *mut FILE;
    OPENDIR c"opendir": fn(Path) -> *mut DIR;
    SCANDIR c"scandir": fn(Path, *mut *mut *mut dirent, Filter, Compare) -> c_int;
    GLOB c"glob": fn(Path, c_int, GlobError, *mut glob_t) -> c_int;
    CHDIR c"chdir": fn(Path) -> c_int;
    STAT c"stat": fn(Path, *mut libc::stat) -> c_int;
    LSTAT c"lstat": fn(Path, *mut libc::stat) -> c_int;
    FSTATAT c"fstatat": fn(c_int, Path, *mut libc::stat, c_int) -> c_int;
    XSTAT c"__xstat": fn(c_int, Path, *mut libc::stat) -> c_int;
    LXSTAT c"__lxstat": fn(c_int, Path, *mut libc::stat) -> c_int;
    FXSTATAT c"__fxstatat": fn(c_int, c_int, Path, *mut libc::stat, c_int) -> c_int;
    STATX c"statx": fn(c_int, Path, c_int, u32, *mut libc::statx) -> c_int;
    ACCESS c"access": fn(Path, c_int) -> c_int;
    EACCESS c"eaccess": fn(Path, c_int) -> c_int;
    FACCESSAT c"faccessat": fn(c_int, Path, c_int, c_int) -> c_int;
    READLINK c"readlink": fn(Path, *mut c_char, size_t) -> ssize_t;
    READLINKAT c"readlinkat": fn(c_int, Path, *mut c_char, size_t) -> ssize_t;
    REALPATH c"realpath": fn(Path, *mut c_char) -> *mut c_char;
    GETXATTR c"getxattr": fn(Path, Path, *mut c_void, size_t) -> ssize_t;
    LGETXATTR c"lgetxattr": fn(Path, Path, *mut c_void, size_t) -> ssize_t;
    LISTXATTR c"listxattr": fn(Path, *mut c_char, size_t) -> ssize_t;
    LLISTXATTR c"llistxattr": fn(Path, *mut c_char, size_t) -> ssize_t;
    MMAP c"mmap": fn(*mut c_void, size_t, c_int, c_int, c_int, off_t) -> *mut c_void;
    MUNMAP c"munmap": fn(*mut c_void, size_t) -> c_int;
    MREMAP c"mremap": fn(*mut c_void, size_t, size_t, c_int; ...) -> *mut c_void;
    MPROTECT c"mprotect": fn(*mut c_void, size_t, c_int) -> c_int;
    MADVISE c"madvise": fn(*mut c_void, size_t, c_int) -> c_int;
    REMAP_FILE_PAGES c"remap_file_pages":
        fn(*mut c_void, size_t, c_int, size_t, c_int) -> c_int;
    SHMAT c"shmat": fn(c_int, *const c_void, c_int) -> *mut c_void;
    SHMDT c"shmdt": fn(*const c_void) -> c_int;
    BRK c"brk": fn(*mut c_void) -> c_int;
    SBRK c"sbrk": fn(isize) -> *mut c_void;
    FREE c"free": fn(*mut c_void) -> ();
    REALLOC c"realloc": fn(*mut c_void, size_t) -> *mut c_void;
    MALLOC_TRIM c"malloc_trim": fn(size_t) -> c_int;
    SIGACTION c"sigaction": fn(c_int, *const libc::sigaction, *mut libc::sigaction) -> c_int;
    SIGNAL c"signal": fn(c_int, sighandler_t) -> sighandler_t;
    SYSV_SIGNAL c"__sysv_signal": fn(c_int, sighandler_t) -> sighandler_t;
    SIGSET c"sigset": fn(c_int, sighandler_t) -> sighandler_t;
    SIGPROCMASK c"sigprocmask": fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;
    PTHREAD_SIGMASK c"pthread_sigmask":
        fn(c_int, *const libc::sigset_t, *mut libc::sigset_t) -> c_int;
    FSTAT c"fstat": fn(c_int, *mut libc::stat) -> c_int;
    FXSTAT c"__fxstat": fn(c_int, c_int, *mut libc::stat) -> c_int;
    SOCKET c"socket": fn(c_int, c_int, c_int) -> c_int;
    SEND c"send": fn(c_int, *const c_void, size_t, c_int) -> ssize_t;
    SENDTO c"sendto":
        fn(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
    SENDMSG c"sendmsg": fn(c_int, *const msghdr, c_int) -> ssize_t;
    WRITE c"write": fn(c_int, *const c_void, size_t) -> ssize_t;
    IOCTL c"ioctl": fn(c_int, c_ulong; ...) -> c_int;
    CLOSE c"close": fn(c_int) -> c_int;
    DUP2 c"dup2": fn(c_int, c_int) -> c_int;
    DUP3 c"dup3": fn(c_int, c_int, c_int) -> c_int;
    CLOSEFROM c"closefrom": fn(c_int) -> ();
    DAEMON c"daemon": fn(c_int, c_int) -> pid_t;
    PRCTL c"prctl": fn(c_int; ...) -> c_int;
}

/// One system call with the caller's arguments; errno is set as usual.
macro_rules! system {
    ($number:ident $(, $arg:expr)*) => {
        // SAFETY: the arguments are those of a caller of the C function, which asks the same of
        // them; what this crate adds is valid for the call.
        unsafe { libc::syscall(libc::$number $(, $arg as libc::c_long)*) }
    };
}

/// Calls the next definition; before it is known, makes the system call.
macro_rules! pass {
    ($next:ident($($arg:expr),*), $number:ident $(, $raw:expr)*) => {
        match $crate::next::$next.get() {
            // SAFETY: the arguments are the caller's own.
            Some(function) => unsafe { function($($arg),*) },
            None => system!($number $(, $raw)*) as _,
        }
    };
}

/// Calls the next definition of a function that is no system call; ENOSYS without one.
macro_rules! pass_or {
    ($next:ident($($arg:expr),*), $otherwise:expr) => {
        match $crate::next::$next.resolve() {
            // SAFETY: the arguments are the caller's own.
            Some(function) => unsafe { function($($arg),*) },
            None => {
                $crate::errno::fail::<i64>(libc::ENOSYS);
                $otherwise
            }
        }
    };
}
