//! What the environment asks of us, and the one way this library ever prints.

use std::path::PathBuf;
use std::sync::OnceLock;

/// The platform description to load instead of the embedded default.
pub fn platform() -> Option<PathBuf> {
    path("PEERDMA_PLATFORM")
}

/// Where to write a packet trace.
pub fn trace() -> Option<PathBuf> {
    path("PEERDMA_TRACE")
}

/// Where to append the device's counters when it is closed or the program ends: lines `name value`, and what crossed the
/// machine ([`crate::memory::traffic`]).
pub fn counters() -> Option<PathBuf> {
    path("PEERDMA_COUNTERS")
}

/// Receive buffer to ask the kernel for, in bytes: what a host with a small `net.core.rmem_max` would grant.
pub fn receive_buffer_bytes() -> Option<usize> {
    std::env::var("PEERDMA_RECEIVE_BUFFER").ok()?.parse().ok()
}

fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Whether `PEERDMA_LOG=1` asks for messages on stderr.
pub fn logging() -> bool {
    static LOGGING: OnceLock<bool> = OnceLock::new();
    *LOGGING.get_or_init(|| std::env::var_os("PEERDMA_LOG").is_some_and(|value| value == "1"))
}

/// Prints a message on stderr when `PEERDMA_LOG=1`; otherwise nothing.
#[macro_export]
macro_rules! log {
    ($($arg:tt)*) => {
        if $crate::env::logging() {
            use std::io::Write as _;
            // A closed stderr is no reason to fail.
            drop(writeln!(std::io::stderr(), "peerdma: {}", format_args!($($arg)*)));
        }
    };
}
