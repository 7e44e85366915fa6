//! What the environment asks of us, and the one way this library ever prints.

use crate::base::ffi::{INVALID, Res};
use dmabuf::Hold;
use std::fmt::Display;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The platform to load instead of the default one: a ready-made one's name, or a file.
pub fn platform() -> Option<PathBuf> {
    path("PEERDMA_PLATFORM")
}

/// What the device shows itself as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// A device of no vendor, which programs use by plain verbs.
    Generic,
    /// A ConnectX-8, which programs also use by `mlx5dv.h`.
    ConnectX,
}

/// `PEERDMA_MODEL`: a ConnectX if it says so.
pub fn model() -> Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    let is_connectx = || std::env::var("PEERDMA_MODEL").is_ok_and(|model| model == "connectx");
    *MODEL.get_or_init(|| if is_connectx() { Model::ConnectX } else { Model::Generic })
}

/// Whether RLIMIT_MEMLOCK limits what is registered.
pub fn enforces_memlock() -> bool {
    static ENFORCES: OnceLock<bool> = OnceLock::new();
    *ENFORCES.get_or_init(|| std::env::var("PEERDMA_MEMLOCK").is_ok_and(|mode| mode == "enforce"))
}

/// To what fraction of its rate each PCIe link is paced; without it none is.
pub fn pace() -> Option<f64> {
    let fraction = std::env::var("PEERDMA_PACE").ok()?.parse().ok()?;
    (fraction > 0.0 && fraction <= 1.0).then_some(fraction)
}

/// Where to write a packet trace.
pub fn trace() -> Option<PathBuf> {
    path("PEERDMA_TRACE")
}

/// Where to append the device's counters when it is closed or the program ends: lines `name value`,
/// and what crossed the machine ([`crate::platform::place::traffic`]).
pub fn counters() -> Option<PathBuf> {
    path("PEERDMA_COUNTERS")
}

/// How queue pairs reach those of this user's other processes on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// From memory to memory where the two agree on it, else by packets.
    Auto,
    /// The same, and where Yama keeps processes from each other's memory, all of this user's are
    /// permitted, not one.
    Local,
    /// By packets, as on a network.
    Roce,
}

/// `PEERDMA_LINK`; EINVAL for a word that is none of these.
pub fn link() -> Res<Link> {
    match std::env::var("PEERDMA_LINK").as_deref() {
        Err(_) | Ok("" | "auto") => Ok(Link::Auto),
        Ok("local") => Ok(Link::Local),
        Ok("roce") => Ok(Link::Roce),
        Ok(other) => {
            say_not_open(format_args!("PEERDMA_LINK={other}: known are auto, local and roce"));
            Err(INVALID)
        }
    }
}

/// Receive buffer to ask the kernel for, in bytes: what a host with a small `net.core.rmem_max`
/// would grant.
pub fn receive_buffer_bytes() -> Option<usize> {
    std::env::var("PEERDMA_RECEIVE_BUFFER").ok()?.parse().ok()
}

/// How regions of dma-bufs hold their buffer: as mlx5's do, unless `PEERDMA_DMABUF` says otherwise.
/// EINVAL for another word.
pub fn dmabuf_hold() -> Res<Hold> {
    match std::env::var("PEERDMA_DMABUF").as_deref() {
        Err(_) | Ok("" | "dynamic") => Ok(Hold::Dynamic),
        Ok("pinned") => Ok(Hold::Pinned),
        Ok("pinned-revocable") => Ok(Hold::PinnedRevocable),
        Ok(other) => {
            crate::log!("PEERDMA_DMABUF={other}: known are dynamic, pinned and pinned-revocable");
            Err(INVALID)
        }
    }
}

/// Whether the device offers to register regions over descriptors anew: unless
/// `PEERDMA_REREG_MR_FD` is `off`.
pub fn offers_rereg_fd() -> bool {
    std::env::var("PEERDMA_REREG_MR_FD").as_deref() != Ok("off")
}

/// When Peer-Direct clients are asked whether a range to register is theirs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerDirect {
    /// After the pages could not be pinned, as MOFED 5 and later do.
    After,
    /// First, as MOFED 4 did.
    Before,
    /// Never, as the kernel without MOFED.
    Off,
}

/// `PEERDMA_PEER_DIRECT`, as it was when it was first asked for; EINVAL for a word that is none of
/// these.
pub fn peer_direct() -> Res<PeerDirect> {
    static PEER_DIRECT: OnceLock<Option<PeerDirect>> = OnceLock::new();
    let known = PEER_DIRECT.get_or_init(|| match std::env::var("PEERDMA_PEER_DIRECT").as_deref() {
        Err(_) | Ok("" | "after") => Some(PeerDirect::After),
        Ok("before") => Some(PeerDirect::Before),
        Ok("off") => Some(PeerDirect::Off),
        Ok(other) => {
            crate::log!("PEERDMA_PEER_DIRECT={other}: known are after, before and off");
            None
        }
    });
    known.ok_or(INVALID)
}

fn path(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// What `PEERDMA_LOG` wants to read on stderr.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Log {
    /// Unset, or anything else.
    Nothing,
    /// `open`, which launchers set: why the device could not be opened, in one line of the process.
    Open,
    /// `1`: whatever is refused or goes wrong.
    All,
}

/// What is asked for.
pub fn log() -> Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    *LOG.get_or_init(|| match std::env::var("PEERDMA_LOG").as_deref() {
        Ok("1") => Log::All,
        Ok("open") => Log::Open,
        _ => Log::Nothing,
    })
}

/// Prints a line on stderr.
pub fn say(message: std::fmt::Arguments<'_>) {
    // One write, so that lines of several processes stay whole.
    engine_thread::say(&format!("peerdma: {message}\n"));
}

/// Prints why the device cannot be opened, if `PEERDMA_LOG` asks for that or more.
pub fn say_not_open(why: impl Display) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let asked = log();
    // A program may try again and again.
    if asked == Log::All || asked == Log::Open && !SAID.swap(true, Relaxed) {
        say(format_args!("cannot open the device: {why}"));
    }
}

/// Prints a message on stderr when `PEERDMA_LOG=1`; otherwise nothing.
#[macro_export]
macro_rules! log {
    ($($arg:tt)*) => {
        if $crate::base::env::log() == $crate::base::env::Log::All {
            $crate::base::env::say(format_args!($($arg)*));
        }
    };
}
