//! Page faults as whoever keeps the memory sees them: what is missing, for whom, and what comes
//! of it.

use crate::values::Remote;
#[cfg(doc)]
use umem::AccessError;

/// Which part of a queue pair waits. At most one fault is open for each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultSide {
    /// Payload of send requests.
    Requests,
    /// What READs and atomics of its own bring.
    Landing,
    /// What a peer's request writes or changes.
    Service,
    /// What a peer's READ fetches.
    Answers,
}

/// The request that met a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultedWork {
    /// A send request, by the program's identifier.
    Send(u64),
    /// A receive request, by the program's identifier.
    Receive(u64),
    /// A peer's operation on this many bytes.
    Remote(Remote, u32),
}

/// A page fault that waits to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// Its name in [`Transport::resume`](super::Transport::resume); a queue pair never uses one
    /// again.
    pub id: u64,
    /// The side of the queue pair that waits.
    pub side: FaultSide,
    /// The key whose memory is missing, where, and how many bytes of this access are from there on.
    pub missing: Missing,
    /// The access writes.
    pub write: bool,
    /// What met it.
    pub work: FaultedWork,
    /// Bytes of that which are done.
    pub done: u32,
    /// Bytes of the packet at hand.
    pub packet: u32,
    /// Bytes that the same operation will touch after that packet.
    pub ahead: u32,
}

/// Memory that is not there: what [`AccessError::NotPresent`] says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Key whose translation has no page there.
    pub key: u32,
    /// Address under that key.
    pub addr: u64,
    /// Bytes from there on that the access touches, at least 1; 65535 stands for any more.
    pub len: u16,
    /// The request named another key, whose list led there.
    pub below: bool,
}

/// The answer to a page fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The memory is there, or the access should look again.
    Served,
    /// It never will be there.
    Refused,
    /// Not under the key that the fault named. It is [`Missing::below`] another, where the access
    /// looks again a little later.
    RefusedBelow,
}
