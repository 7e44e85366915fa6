//! What the transport is called with, and what it asks of its caller.

use crate::counters::Count;
use crate::keys::KeyTable;
use crate::qp::{Budget, PageFault};
use crate::queues::tags::Accepted;
#[cfg(doc)]
use crate::values::SendOp;
use crate::values::{Completion, Destination, EventType, Gid, PdId, RecvWr, WcStatus, XrcdId};
#[cfg(doc)]
use crate::{qp::Transport, queues::tags::TagList};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;
use umem::{AccessError, Fold};
use wire::Headers;

/// Where a packet goes.
#[derive(Clone, Copy)]
pub enum To<'a> {
    /// The connected peer of the QP.
    Peer,
    /// A datagram's destination.
    Ah(&'a Arc<dyn Destination>),
}

/// Writes a packet's payload into place, and folds it into the ICRC on the way where it can.
pub type Fill<'a> = dyn FnMut(&mut [u8], &mut Fold) -> Result<(), AccessError> + 'a;

/// Takes packets towards the wire. The sink owns the buffer, so payload is copied once, straight from registered
/// memory into the train; it appends padding and ICRC and groups equal packets into GSO trains.
pub trait Tx {
    /// Emits one packet: `headers` (with `pad` set), then `payload_len` bytes that `fill` writes.
    /// When `fill` fails nothing is sent and its error is returned.
    fn packet(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        payload_len: usize,
        fill: &mut Fill<'_>,
    ) -> Result<(), AccessError>;

    /// Emits one Ethernet frame of `len` bytes that `fill` writes; otherwise as [`Tx::packet`]. A way out that knows no
    /// frames fails.
    fn frame(&mut self, len: usize, fill: &mut Fill<'_>) -> Result<(), AccessError> {
        let _ = (len, fill);
        Err(AccessError::Unreachable)
    }

    /// Bytes of the port's active MTU, as a query answers it, 256 to 4096. No datagram beyond it leaves.
    fn port_mtu(&self) -> u32 {
        4096
    }

    /// Whether what was moved keeps the PCIe links busy for so long that the rest should wait.
    fn is_busy(&self, now: Instant) -> bool {
        let _ = now;
        false
    }

    /// Whether the receiver can take `bytes` more now, `None` where nobody knows. An unreliable service asks, as an
    /// Ethernet fabric with priority flow control would answer by pausing it.
    fn room(&mut self, to: To<'_>, dest_qpn: u32, bytes: u64, now: Instant) -> Option<bool> {
        let _ = (to, dest_qpn, bytes, now);
        None
    }
}

/// A packet from the wire: ICRC checked and removed.
#[derive(Clone, Copy, Debug)]
pub struct Rx<'a> {
    /// Parsed headers.
    pub headers: &'a Headers,
    /// Payload without padding.
    pub payload: &'a [u8],
    /// IP source.
    pub src: IpAddr,
    /// IP destination.
    pub dst: IpAddr,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// Control information of a VLAN tag.
    pub vlan: Option<u16>,
    /// What brought it here.
    pub routing: Routing,
}

/// What brought a packet here, and stands in a datagram's receive buffer before the payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routing {
    /// Its IP header.
    Ip,
    /// LIDs alone, on an InfiniBand subnet: there is no header.
    Lid,
    /// A GRH on an InfiniBand subnet.
    Gid {
        /// Port that sent it.
        source: Gid,
        /// Where to.
        destination: Gid,
    },
}

/// Takes what a QP has to tell its owner.
pub trait Sink {
    /// A completion of the send queue.
    fn sent(&mut self, completion: Completion);
    /// A completion of the receive queue.
    fn received(&mut self, completion: Completion);
    /// An asynchronous event of this QP.
    fn event(&mut self, event: EventType);
    /// Memory that it needs is not there. `true`: [`Transport::resume`] will say when it is, or that it never will be.
    fn page_fault(&mut self, fault: PageFault) -> bool {
        let _ = fault;
        false
    }
}

/// A receive queue that several QPs share (SRQ).
pub trait SharedReceive: Send + Sync {
    /// Takes the oldest request. Called under a QP's lock.
    fn take(&self) -> Option<RecvWr>;
    /// Protection domain that the requests' keys belong to; `None` means that of the QP.
    fn pd_id(&self) -> Option<PdId> {
        None
    }
}

/// Does what only a front end knows ([`SendOp::Custom`]).
pub trait CustomWork: Send + Sync {
    /// Does what `token` stands for, or goes on with it behind the first `done` bytes, with a QP's lock held: it may touch memory
    /// and keys, but must not wait for other QPs. What takes long is done in parts.
    ///
    /// # Errors
    /// The status that the request completes with; the QP ends.
    fn perform(&self, token: u64, done: u64) -> Result<Worked, WcStatus>;
}

/// How far a call to [`CustomWork::perform`] came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Worked {
    /// To the end; that took as long as to send so many bytes.
    All(u64),
    /// So many bytes further, and more are left for another call.
    Part(u64),
}

/// A shared receive queue with a completion queue of its own.
pub trait OwnCompletions: SharedReceive {
    /// A completion of one of its requests.
    fn received(&self, completion: Completion);
}

/// A shared receive queue of an XRC domain.
pub trait XrcReceive: OwnCompletions {
    /// Its domain.
    fn xrcd(&self) -> Option<XrcdId>;
}

/// A shared receive queue that matches tags.
pub trait TagReceive: OwnCompletions {
    /// Where a message goes, as [`TagList::accept`] says. Called under a QP's lock.
    fn accept(&self, first: &[u8], whole: bool, fetches: bool) -> Option<Accepted>;
}

/// The XRC receive queues of a device, by number.
pub trait XrcQueues {
    /// The queue with this number. Called under a QP's lock.
    fn queue(&self, number: u32) -> Option<Arc<dyn XrcReceive>>;
}

/// What a call may use besides the QP itself.
pub struct Cx<'a> {
    /// The present.
    pub now: Instant,
    /// Way out for packets.
    pub tx: &'a mut dyn Tx,
    /// Keys of the device.
    pub keys: &'a KeyTable,
    /// XRC queues of the device.
    pub xrc: &'a dyn XrcQueues,
    /// Way out for completions and events.
    pub sink: &'a mut dyn Sink,
    /// Counters.
    pub counters: &'a dyn Count,
    /// What the call may still send.
    pub budget: Budget,
}
