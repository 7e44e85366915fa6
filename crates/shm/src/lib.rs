//! Shared memory that several processes read and write: atomic words in a sealed memfd.
//!
//! The only view is a bounds-checked [`AtomicU64`], so no reference to changing plain memory
//! exists. The memfd is sealed against shrinking before it is mapped, so a touch of the mapping
//! cannot fault whatever another process does with the descriptor; [`Shm::open`] refuses one that
//! is not.

mod gone;
mod held;
mod lock;
mod passes;
mod processes;
mod ring;
pub mod sabotage;

pub use gone::is_gone;
pub use held::Held;
pub use lock::{hold_byte, is_byte_locked, lock_byte, unlock_byte};
pub use passes::{Pass, Passes, Ticket};
pub use processes::Processes;
pub use ring::{Between, Broken, RING_BYTES, Record, RingReader, RingWriter};

use descriptors::Kept;
use rustix::fs::{AtFlags, MemfdFlags, OFlags, SealFlags, StatxFlags};
use rustix::io::{Errno, Result};
use rustix::thread::{Timespec, futex};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// The memfd that is descriptor `fd` of process `pid`, of this user and this PID namespace. Asks
/// for no memory, and no other file is opened: what the descriptor is the other process says, and
/// to open a device or a file of a file system in user space may do anything, or wait for ever.
///
/// # Errors
/// `PERM` when it is no memfd, `SRCH` where `/proc` shows other processes by these numbers, else
/// what `open(2)` of the file in `/proc` says.
pub fn memfd_of_process(pid: u32, fd: u32) -> Result<OwnedFd> {
    let processes = Processes::seen()?;
    let file = processes.open(pid, format_args!("fd/{fd}"), OFlags::PATH)?;
    if file_system(&file)? != file_system_of_memfds()? {
        return Err(Errno::PERM);
    }
    let own = rustix::process::getpid().as_raw_pid().cast_unsigned();
    processes.open(own, format_args!("fd/{}", file.as_raw_fd()), OFlags::RDWR)
}

/// Whether `file` is the memfd that is descriptor `fd` of process `pid`.
pub fn is_memfd_of_process(file: impl AsFd, pid: u32, fd: u32) -> bool {
    let which =
        |file: &dyn AsFd| rustix::fs::fstat(file.as_fd()).map(|found| (found.st_dev, found.st_ino));
    let found = memfd_of_process(pid, fd).and_then(|found| which(&found));
    found.is_ok() && found == which(&file)
}

/// The file system that a file is of, as the kernel knows it without asking that.
fn file_system(file: impl AsFd) -> Result<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(file, c"", flags, StatxFlags::empty())?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}

/// The kernel's own, which all memfds of small pages are of.
fn file_system_of_memfds() -> Result<(u32, u32)> {
    static KNOWN: OnceLock<(u32, u32)> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(*known);
    }
    let found = file_system(rustix::fs::memfd_create(c"peerdma", MemfdFlags::CLOEXEC)?)?;
    Ok(*KNOWN.get_or_init(|| found))
}

/// Length of a file that cannot become shorter.
fn sealed_len(fd: impl AsFd) -> Result<usize> {
    if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
        return Err(Errno::PERM);
    }
    usize::try_from(rustix::fs::fstat(&fd)?.st_size).map_err(|_| Errno::INVAL)
}

/// A mapped region of shared atomic words. It outlives the descriptors that it was mapped by.
#[derive(Debug)]
pub struct Shm {
    base: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping is owned by the value, lives until drop, and is reachable only as atomics.
unsafe impl Send for Shm {}
// SAFETY: as above.
unsafe impl Sync for Shm {}

impl Shm {
    /// A new region of `bytes` (rounded up to whole words), zeroed, and the descriptor by which
    /// others open it. Untouched pages take no memory.
    ///
    /// # Errors
    /// `FBIG` when RLIMIT_FSIZE is less, else what `memfd_create` and `mmap` say.
    pub fn create(name: &str, bytes: usize) -> Result<(Shm, Kept)> {
        let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        let len = bytes.checked_next_multiple_of(8).ok_or(Errno::INVAL)?;
        engine_thread::growing_files(|| rustix::fs::ftruncate(&fd, len as u64))?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
        Ok((Shm::map(&fd, len)?, Kept::new(fd)))
    }

    /// Maps another process's region.
    ///
    /// # Errors
    /// `PERM` when the descriptor is not sealed against shrinking, `INVAL` when it is empty, else
    /// what `mmap` says.
    pub fn open(fd: impl AsFd) -> Result<Shm> {
        let len = sealed_len(&fd)?;
        Shm::map(fd, len)
    }

    /// Maps the first `bytes` of one that has so many at least.
    ///
    /// # Errors
    /// `PROTO` when it has fewer, else those of [`Shm::open`].
    pub fn open_first(fd: impl AsFd, bytes: usize) -> Result<Shm> {
        match sealed_len(&fd)? {
            len if len >= bytes => Shm::map(fd, bytes),
            _ => Err(Errno::PROTO),
        }
    }

    /// Maps one that has `bytes`, and no other: as much address space as its maker likes would go.
    ///
    /// # Errors
    /// `PROTO` when it has more or fewer, else those of [`Shm::open`].
    pub fn open_of(fd: impl AsFd, bytes: usize) -> Result<Shm> {
        match sealed_len(&fd)? {
            len if len == bytes => Shm::map(fd, len),
            _ => Err(Errno::PROTO),
        }
    }

    fn map(fd: impl AsFd, len: usize) -> Result<Shm> {
        use rustix::mm::{MapFlags, ProtFlags};
        if len < 8 {
            return Err(Errno::INVAL);
        }
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing of ours.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )?
        };
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Shm { base, words: len / 8 })
    }

    /// The word at byte offset `at`.
    ///
    /// # Panics
    /// When `at` is not a multiple of 8 or lies outside: a mistake of the caller, never of another
    /// process, whose values must be checked before they are used as offsets.
    #[inline]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at / 8 < self.words, "word {at} outside the shared region");
        // SAFETY: in bounds by the assertion, aligned, mapped until drop, and only ever accessed
        // atomically.
        unsafe { self.base.add(at / 8).as_ref() }
    }

    /// All words.
    #[inline]
    fn words(&self) -> &[AtomicU64] {
        // SAFETY: as in `word`, for all of them.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }

    /// Waits while the lower half of the word at `at` is that of `seen`, for `limit` at most; may
    /// end early. See [`Shm::word`] for panics.
    pub fn wait(&self, at: usize, seen: u64, limit: Duration) {
        let limit =
            Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
        // An error is an early end: the word has changed, a signal came, or the time is over.
        let _ = futex::wait(self.low_half(at), futex::Flags::empty(), seen as u32, Some(&limit));
    }

    /// Ends the waits of all processes for the word at `at`. See [`Shm::word`] for panics.
    pub fn wake(&self, at: usize) {
        let _ = futex::wake(self.low_half(at), futex::Flags::empty(), i32::MAX as u32);
    }

    /// What the kernel compares: futexes have 32 bits.
    #[inline]
    fn low_half(&self, at: usize) -> &AtomicU32 {
        let word = std::ptr::from_ref(self.word(at)).cast::<AtomicU32>();
        let half = if cfg!(target_endian = "big") { 1 } else { 0 };
        // SAFETY: one half of a live word, aligned, and only ever accessed atomically.
        unsafe { &*word.add(half) }
    }

    /// Address of the byte at `at`, for memory behind the words: reach it by guarded copies only.
    /// `None` beyond the end.
    pub fn addr(&self, at: usize) -> Option<u64> {
        (at <= self.bytes()).then(|| self.base.as_ptr() as u64 + at as u64)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.words * 8
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; no reference outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.words * 8) };
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn two_mappings_share_words() {
        let (one, fd) = Shm::create("peerdma-test", 4096).unwrap();
        let two = Shm::open(&fd).unwrap();
        drop(fd);
        one.word(4088).store(7, Relaxed);
        assert_eq!(two.word(4088).load(Relaxed), 7);
        assert_eq!(two.bytes(), 4096);
    }

    #[test]
    fn a_region_is_found_by_its_descriptor() {
        let (one, kept) = Shm::create("peerdma-test", 4096).unwrap();
        let (pid, fd) = (std::process::id(), kept.as_fd().as_raw_fd() as u32);
        let two = Shm::open(memfd_of_process(pid, fd).unwrap()).unwrap();
        one.word(4088).store(7, Relaxed);
        assert_eq!(two.word(4088).load(Relaxed), 7);
        assert_eq!(memfd_of_process(pid, 1 << 20).unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn what_is_no_memfd_is_not_opened() {
        let pid = std::process::id();
        let file = tempfile();
        for path in ["/dev/null", "/proc/self/status", "/", file.to_str().unwrap()] {
            let opened = std::fs::File::open(path).unwrap();
            let refused = memfd_of_process(pid, opened.as_raw_fd().cast_unsigned());
            assert_eq!(refused.unwrap_err(), Errno::PERM, "{path}");
        }
        std::fs::remove_file(file).unwrap();
        let (read, _write) = rustix::pipe::pipe().unwrap();
        let refused = memfd_of_process(pid, read.as_raw_fd().cast_unsigned());
        assert_eq!(refused.unwrap_err(), Errno::PERM);
    }

    /// A file in memory, where there is a file system for that.
    fn tempfile() -> std::path::PathBuf {
        let folder = std::path::Path::new("/dev/shm");
        let folder = if folder.is_dir() { folder.to_owned() } else { std::env::temp_dir() };
        let file = folder.join(format!("peerdma-shm-{}", std::process::id()));
        std::fs::write(&file, [0; 4096]).unwrap();
        file
    }

    #[test]
    fn a_region_is_opened_by_its_length_where_that_is_known() {
        let (_, fd) = Shm::create("peerdma-test", 4096).unwrap();
        assert_eq!(Shm::open_of(&fd, 4096).unwrap().bytes(), 4096);
        for other in [4088, 4104, 0] {
            assert_eq!(Shm::open_of(&fd, other).unwrap_err(), Errno::PROTO);
        }
        assert_eq!(Shm::open_first(&fd, 64).unwrap().bytes(), 64);
        assert_eq!(Shm::open_first(&fd, 4104).unwrap_err(), Errno::PROTO);
    }

    /// Of `fcntl.h`.
    const F_SETSIG: libc::c_int = 10;

    #[test]
    fn nobody_is_made_to_wait_for_a_file_of_another_process() {
        let made = rustix::fs::memfd_create("leased", MemfdFlags::CLOEXEC).unwrap();
        let number = made.as_raw_fd();
        // Only what was opened by its name is counted, and a lease is for one who is alone.
        let fd = memfd_of_process(std::process::id(), number.cast_unsigned()).unwrap();
        drop(made);
        let number = fd.as_raw_fd();
        // SAFETY: the descriptor is open, and these calls take numbers only. By default the signal
        // of a lease's end would end the process.
        let leased = unsafe {
            libc::fcntl(number, F_SETSIG, libc::SIGURG) == 0
                && libc::fcntl(number, libc::F_SETLEASE, libc::F_WRLCK) == 0
        };
        assert!(leased, "{}", std::io::Error::last_os_error());
        let opened = memfd_of_process(std::process::id(), number.cast_unsigned());
        assert_eq!(opened.unwrap_err(), Errno::WOULDBLOCK);
    }

    #[test]
    fn a_wait_ends_by_a_wake_or_its_limit() {
        let (shared, _) = Shm::create("peerdma-test", 64).unwrap();
        shared.wait(8, 1, Duration::from_secs(60)); // the word is 0
        shared.wait(8, 0, Duration::from_millis(1));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while shared.word(8).load(Relaxed) == 0 {
                    shared.wait(8, 0, Duration::from_secs(60));
                }
            });
            shared.word(8).store(1, Relaxed);
            shared.wake(8);
        });
        assert_eq!(shared.addr(64).unwrap() - shared.addr(0).unwrap(), 64);
        assert_eq!(shared.addr(65), None);
    }

    #[test]
    fn refuses_a_descriptor_that_may_shrink() {
        let fd = rustix::fs::memfd_create("loose", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, 4096).unwrap();
        assert_eq!(Shm::open(fd).unwrap_err(), Errno::PERM);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn out_of_bounds_is_a_callers_mistake() {
        Shm::create("peerdma-test", 64).unwrap().0.word(64);
    }
}
