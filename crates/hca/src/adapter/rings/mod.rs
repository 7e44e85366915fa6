//! The packets' way between two processes of one user on one host: a ring in shared memory instead
//! of sockets (D7). What passes through it are packets as on the wire, without the ICRC, so both
//! transports do all that they do otherwise; the two processes share nothing else.
//!
//! Who sends to a process makes a ring, publishes it in the registry and announces it in that
//! process's directory. The other's engine thread attaches it; until then, and where it cannot,
//! packets go by UDP. A reader that is about to sleep says so in its directory, and only then is
//! woken. A ring lives as long as both processes do.

mod from;
mod record;
mod to;

pub(crate) use from::{PACKETS_A_TURN, RingFrom};
pub(crate) use record::{Ends, PREFIX_LEN, begin};
pub(crate) use to::RingTo;

use engine_thread::lock;
use from::Incoming;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

/// The rings of one device.
pub(crate) struct Rings {
    /// Those that it writes, by the slot of their reader.
    pub(crate) to: Mutex<HashMap<u16, Arc<RingTo>>>,
    /// Those that it reads, in turns.
    from: Mutex<Incoming>,
    /// How many were announced when the engine thread last looked.
    pub(crate) seen: AtomicU64,
}

impl Rings {
    /// None yet.
    ///
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new() -> std::io::Result<Rings> {
        let from = Mutex::new(Incoming::new()?);
        Ok(Rings { to: Mutex::default(), from, seen: AtomicU64::new(0) })
    }

    /// Those that it reads.
    pub(crate) fn from(&self) -> MutexGuard<'_, Incoming> {
        lock(&self.from)
    }
}
