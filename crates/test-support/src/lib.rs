//! What the tests of every room stand on: a skip that is counted, a network of their own, and the
//! built library.
//!
//! It promises that a test which cannot run here is counted in the test command's closing line, and
//! that no device, program or user of the machine is in the way of a test that has a network of its
//! own.
//!
//! Start at [`skip!`], which ends a test that cannot run: its harness takes it for passed, the test
//! command for skipped. A test that opens a device calls [`network::enter`] first; [`library`]
//! finds the library for those that load it.
#![forbid(unsafe_code)]

pub mod library;
pub mod network;
mod skips;

pub use network::Network;
pub use skips::{FILE, note_skip};

/// Ends the calling test as skipped: prints the reason and notes it for the test command's closing
/// line.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::note_skip(&format!($($reason)*));
        return;
    }};
}

/// Whether this process is root: namespaces and other users need it.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether the C compiler is there, and finds a header.
pub fn has_header(header: &str) -> bool {
    use std::process::{Command, Stdio};
    let mut compiler = Command::new("cc");
    compiler.args(["-E", "-include", header, "-x", "c", "/dev/null"]);
    let run = compiler.stdout(Stdio::null()).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

/// Whether a program is on the PATH.
pub fn has(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}
