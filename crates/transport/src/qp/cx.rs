//! What the transport is called with, and what it asks of its caller.

use super::budget::Budget;
use super::page_fault::PageFault;
use crate::counters::Count;
use crate::executor::{Arriving, InTransit, Landing};
use crate::keys::KeyTable;
use crate::queues::shared::XrcQueues;
use crate::values::{Completion, Destination, EventType, Gid, Remote};
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use umem::{AccessError, Fold, Source};
use wire::Headers;

/// The halves of a connected QP. What they send may take different ways: answers go where the
/// requests came from, while requests of one's own may not, as before ready-to-send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Half {
    /// Sends requests.
    Requester,
    /// Sends acknowledges, what READs ask for, and notifications.
    Responder,
}

/// Where a packet goes.
#[derive(Clone, Copy)]
pub enum To<'a> {
    /// The connected peer of the QP, from one of its halves.
    Peer(Half),
    /// A datagram's destination.
    Ah(&'a Arc<dyn Destination>),
}

/// Writes a packet's payload into place, and folds it into the ICRC on the way where it can.
pub type Fill<'a> = dyn FnMut(&mut [u8], &mut Fold) -> Result<(), AccessError> + 'a;

/// Bytes that are sent, where they are in this process.
pub trait ReadInPlace {
    /// Has `each` read `len` bytes from `at` on, piece by piece in order.
    ///
    /// # Errors
    /// [`AccessError::Unreachable`] where they are no memory of this process.
    fn read(
        &mut self,
        at: u64,
        len: usize,
        each: &mut dyn FnMut(Source<'_>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError>;
}

/// Bytes of a send request where they are in this process, for who moves them without packets.
pub trait InPlace: ReadInPlace {
    /// Has `each` write them.
    fn write(
        &mut self,
        at: u64,
        len: usize,
        each: &mut dyn FnMut(umem::Sink<'_>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError>;

    /// Whether some of all of them may be at these addresses of this process.
    fn may_lie_over(&self, range: &Range<u64>) -> bool;
}

/// A part of an RDMA WRITE or READ that may be moved without packets.
pub struct Direct<'a> {
    /// Whether bytes go to the peer.
    pub write: bool,
    /// The peer's QP.
    pub dest_qpn: u32,
    /// Where all of it begins at the peer.
    pub remote: Remote,
    /// Bytes of all of it.
    pub length: u32,
    /// Where the part begins.
    pub at: u64,
    /// Bytes of the part.
    pub len: usize,
    /// The memory here.
    pub memory: &'a mut dyn InPlace,
}

/// Takes packets towards the wire. The sink owns the buffer, so payload is copied once, straight
/// from registered memory into the train; it appends padding and ICRC and groups equal packets into
/// GSO trains.
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

    /// Emits one Ethernet frame of `len` bytes that `fill` writes; otherwise as [`Tx::packet`]. A
    /// way out that knows no frames fails.
    fn frame(&mut self, len: usize, fill: &mut Fill<'_>) -> Result<(), AccessError> {
        let _ = (len, fill);
        Err(AccessError::Unreachable)
    }

    /// Bytes of the port's active MTU, as a query answers it, 256 to 4096. No datagram beyond it
    /// leaves.
    fn port_mtu(&self) -> u32 {
        4096
    }

    /// Whether what was moved keeps the PCIe links busy for so long that the rest should wait.
    fn is_busy(&self, now: Instant) -> bool {
        let _ = now;
        false
    }

    /// Whether the connected peer is a neighbour, whose memory [`Tx::direct`] may reach.
    fn has_neighbour(&self) -> bool {
        false
    }

    /// Whether that memory is this process's own, so that [`Tx::direct`] takes no call to the
    /// system, and less than a packet.
    fn is_at_home(&self) -> bool {
        false
    }

    /// Moves a part of a request between this process's memory and the peer's. `false`: nothing of
    /// it counts as moved, and packets shall do all of the request, be it that there is something
    /// to refuse.
    fn direct(&mut self, direct: Direct<'_>) -> bool {
        let _ = direct;
        false
    }

    /// The same to the connected peer, for payload that is copied where it is: `len` bytes from
    /// `at` on of `memory`. `false`: nothing was sent, and [`Tx::packet`] shall do it.
    fn packet_in_place(
        &mut self,
        half: Half,
        headers: &Headers,
        (at, len): (u64, usize),
        memory: &mut dyn ReadInPlace,
    ) -> bool {
        let _ = (half, headers, at, len, memory);
        false
    }

    /// Whether [`Tx::room`] is cheap to ask for packets of this half to the connected peer, and
    /// wants to be asked for each.
    fn counts_packets(&self, half: Half) -> bool {
        let _ = half;
        false
    }

    /// Whether the receiver can take `bytes` more now, `None` where nobody knows. An unreliable
    /// service asks, as an Ethernet fabric with priority flow control would answer by pausing it.
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
    /// Payload without padding; empty where it is in transit.
    pub payload: &'a [u8],
    /// Payload that is still where the packet came by.
    pub in_transit: Option<&'a dyn InTransit>,
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
    /// Bytes of all packets but the last of its message, where it did not come by the path that the
    /// program named; `None`: the path's MTU.
    pub mtu: Option<u32>,
}

impl<'a> Rx<'a> {
    /// Its payload, wherever that is.
    pub fn arriving(&self) -> Arriving<'a> {
        self.in_transit.map_or(Arriving::Here(self.payload), Arriving::InTransit)
    }

    /// Bytes of its payload.
    pub fn payload_len(&self) -> usize {
        self.arriving().bytes()
    }
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

/// Takes a QP's completions, events and page faults to its owner.
pub trait Sink {
    /// A completion of the send queue.
    fn sent(&mut self, completion: Completion);
    /// A completion of the receive queue.
    fn received(&mut self, completion: Completion);
    /// An asynchronous event of this QP.
    fn event(&mut self, event: EventType);
    /// Memory that it needs is not there. `true`: [`Transport::resume`](super::Transport::resume)
    /// will say when it is, or that it never will be.
    fn page_fault(&mut self, fault: PageFault) -> bool {
        let _ = fault;
        false
    }
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

impl Cx<'_> {
    /// Reports the completion of a receive request to whom it belongs.
    pub(crate) fn received(&mut self, landing: &Landing, done: Completion) {
        match landing.owner() {
            Some(queue) => queue.received(done),
            None => self.sink.received(done),
        }
    }
}
