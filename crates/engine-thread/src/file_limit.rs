//! Growing files in a process whose RLIMIT_FSIZE is not ours to know.
//!
//! A file that would grow past the limit fails with EFBIG and sends SIGXFSZ to the thread
//! (setrlimit(2)), whose default action ends the program. The program neither made the file nor
//! expects the signal.

/// Runs `grow`, which may make a file grow; a SIGXFSZ of it never reaches the program.
pub fn growing_files<T>(grow: impl FnOnce() -> T) -> T {
    crate::kept_signal::without(libc::SIGXFSZ, grow)
}
