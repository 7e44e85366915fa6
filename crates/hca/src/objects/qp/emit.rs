//! What comes out of a queue pair's transport: packets and frames on their way to the link,
//! completions and events on their way to their queues.

use super::Qp;
use crate::adapter::Adapter;
use crate::adapter::directory::neighbour::Neighbour;
use crate::adapter::event::{AsyncEvent, EventSource};
use crate::adapter::paths::PeerPath;
use crate::adapter::rings::{self, Ends, RingTo};
use crate::memory::key_space::parts_reached;
use crate::objects::ah::{AddressHandle, handle_of};
use crate::objects::door::Door;
use link::{Batch, FrameBatch, FramePort};
use mm::guard::fold::Fold;
use std::time::{Duration, Instant};
use transport::values::*;
use transport::{Count, Counter, Direct, Fill, Half, PageFault, ReadInPlace, Sink, To, Tx};
use umem::AccessError;
use wire::{Headers, Opcode, Operation, Service};

/// Parts of keys over other keys after which one call sends no more: each takes as long as some
/// hundred bytes.
const PARTS_A_CALL: u64 = 1024;
/// How long a burst may keep paced links busy: acknowledges come once a burst, and must come in
/// time.
const LINK_BURST: Duration = Duration::from_millis(1);

/// Packets of one QP on their way to the link.
pub(super) struct Out<'a> {
    pub(super) adapter: &'a Adapter,
    /// When the call began, or its turn.
    pub(super) now: Instant,
    /// [`parts_reached`] when the call began.
    pub(super) parts: u64,
    /// Where packets for the wire are staged: the caller's, or else its own, once there is one.
    pub(super) batch: Option<&'a mut Batch>,
    pub(super) own_batch: Option<Batch>,
    pub(super) way: Option<&'a PeerPath>,
    /// Whose memory requests may reach without packets, and the addresses of the packets that they
    /// would be, as [`Wanted`](crate::adapter::directory::neighbour::Wanted) has them.
    pub(super) neighbour: Option<(&'a Neighbour, u64)>,
    /// The same where the peer is of this device.
    pub(super) home: Option<(&'a Door, u64)>,
    /// What packets to the peer can pass through instead of the wire.
    pub(super) ring: Option<(&'a RingTo, &'a Ends)>,
    /// Whether requests do.
    pub(super) by_ring: bool,
    /// Whether answers do.
    pub(super) answers_by_ring: bool,
    /// Bytes of the longest packet that the peer takes from the wire.
    pub(super) path_mtu: u32,
    /// Some went by the wire all the same.
    pub(super) used_wire: bool,
    /// How many passed through rings.
    pub(super) ring_packets: u64,
    /// Some were put into the peer's: who reads them may have to be woken.
    pub(super) filled_ring: bool,
    /// Datagrams were put into other rings.
    pub(super) datagrams_by_ring: bool,
    /// When a request of up to [`transport::SHORT_DIRECT`] bytes had gone directly, the latest.
    pub(super) went_directly: Option<Instant>,
    /// Payload that left.
    pub(super) sent_bytes: u64,
    pub(super) number: u32,
    /// For raw packets: what carries frames, and the frames collected for it.
    pub(super) frames: Option<(&'a FramePort, &'a mut FrameBatch)>,
}

/// Longest record of a ring that is made on the stack.
const SHORT_RECORD: usize = 256;

impl<'a> Out<'a> {
    fn batch(&mut self) -> &mut Batch {
        match &mut self.batch {
            Some(batch) => batch,
            None => self.own_batch.get_or_insert_with(|| self.adapter.take_batch()),
        }
    }

    /// Packets for the wire that are staged.
    fn staged(&self) -> usize {
        self.batch.as_deref().or(self.own_batch.as_ref()).map_or(0, Batch::packets)
    }

    /// Sends what is staged in a batch of its own, and counts what left.
    pub(super) fn finish(&mut self) {
        if let Some(mut batch) = self.own_batch.take() {
            batch.flush(self.adapter.endpoint());
            self.adapter.return_batch(batch);
        }
        let directory = self.adapter.directory();
        if self.ring_packets > 0 {
            directory.count(Counter::RingPackets, std::mem::take(&mut self.ring_packets));
        }
        directory.add_traffic(self.number, std::mem::take(&mut self.sent_bytes), 0);
    }

    /// The ring that packets of this half to the peer pass through, if any.
    fn ring_for(&self, half: Half) -> Option<(&'a RingTo, &'a Ends)> {
        let by_ring = match half {
            Half::Requester => self.by_ring,
            Half::Responder => self.answers_by_ring,
        };
        self.ring.filter(|_| by_ring)
    }

    /// Sends a packet to the peer by the ring; `false` if there is none, or it is full.
    fn leaves_by_ring(
        &mut self,
        half: Half,
        headers: &Headers,
        payload_len: usize,
        fill: &mut Fill<'_>,
    ) -> std::result::Result<bool, AccessError> {
        let Some(ring) = self.ring_for(half) else { return Ok(false) };
        let pushed = self.push(ring, headers, payload_len, fill)?;
        self.filled_ring |= pushed;
        Ok(pushed)
    }

    /// The same for a datagram.
    fn datagram_leaves_by_ring(
        &mut self,
        ah: &AddressHandle,
        headers: &Headers,
        payload_len: usize,
        fill: &mut Fill<'_>,
    ) -> std::result::Result<bool, AccessError> {
        let (none_waits, dest_qpn) = (self.staged() == 0, headers.bth.dest_qp);
        let Some((ring, ends)) = ah.ring(dest_qpn, none_waits) else { return Ok(false) };
        let pushed = self.push((&ring, &ends), headers, payload_len, fill)?;
        if pushed {
            ring.rouse();
            self.datagrams_by_ring = true;
        } else {
            ah.leave_ring(dest_qpn);
        }
        Ok(pushed)
    }

    /// Makes a packet and puts it into a ring, if it fits.
    fn push(
        &mut self,
        (ring, ends): (&RingTo, &Ends),
        headers: &Headers,
        payload_len: usize,
        fill: &mut Fill<'_>,
    ) -> std::result::Result<bool, AccessError> {
        let len = rings::PREFIX_LEN + headers.len() + payload_len + usize::from(headers.bth.pad);
        let endpoint = self.adapter.endpoint();
        let mut short = [0; SHORT_RECORD];
        let record = match short.get_mut(..len) {
            Some(record) => record,
            None => self.batch().aside(endpoint, len),
        };
        fill(rings::begin(headers, payload_len, record), &mut Fold::off())?;
        let pushed = ring.push(ends, record);
        self.ring_packets += u64::from(pushed);
        Ok(pushed)
    }

    /// Whether so much fits into a ring, or it need not fit; one that is full is noted.
    fn ring_has_room(&self, ring: &RingTo, bytes: u64, now: Instant) -> bool {
        let has_room = ring.has_room(bytes);
        if let (false, Some(rings)) = (has_room, self.adapter.rings()) {
            rings.note_full();
        }
        has_room || ring.is_stuck(now)
    }
}

impl Tx for Out<'_> {
    fn packet(
        &mut self,
        to: To<'_>,
        headers: &Headers,
        payload_len: usize,
        fill: &mut Fill<'_>,
    ) -> std::result::Result<(), AccessError> {
        match to {
            To::Peer(half) => {
                let Some(way) = self.way else { return Ok(()) };
                let left = self.leaves_by_ring(half, headers, payload_len, fill)?;
                // What the wire cannot take comes again, as what is lost there. So does a READ that
                // the ring did not take: the answer has another number of packets on the wire. And
                // of an unreliable connection no packet overtakes those in the ring.
                let Opcode { operation, service, .. } = headers.bth.opcode;
                let stays = operation == Operation::ReadRequest || service == Service::Uc;
                let is_of_ring = self.by_ring && stays;
                if !left && !is_of_ring && payload_len <= self.path_mtu as usize {
                    let endpoint = self.adapter.endpoint();
                    self.batch().packet(endpoint, &way.flow, headers, payload_len, fill)?;
                    self.used_wire = true;
                }
            }
            To::Ah(ah) => {
                let Some(ah) = handle_of(&**ah) else { return Ok(()) };
                if !self.datagram_leaves_by_ring(ah, headers, payload_len, fill)? {
                    let Ok(way) = ah.way_by_wire(self.adapter, headers.bth.dest_qp) else {
                        self.adapter.directory().count(Counter::TxNoFlow, 1);
                        return Ok(());
                    };
                    let endpoint = self.adapter.endpoint();
                    self.batch().packet(endpoint, &way.flow, headers, payload_len, fill)?;
                }
            }
        }
        self.sent_bytes += payload_len as u64;
        Ok(())
    }

    fn frame(&mut self, len: usize, fill: &mut Fill<'_>) -> std::result::Result<(), AccessError> {
        let Some((port, frames)) = &mut self.frames else { return Err(AccessError::Unreachable) };
        frames.frame(port, self.adapter.endpoint().stats(), len, fill)?;
        self.sent_bytes += len as u64;
        Ok(())
    }

    fn port_mtu(&self) -> u32 {
        self.adapter.active_mtu()
    }

    fn is_busy(&self, now: Instant) -> bool {
        parts_reached() - self.parts >= PARTS_A_CALL || pcie::owes_more(now, LINK_BURST)
    }

    fn has_neighbour(&self) -> bool {
        let reaches =
            |(neighbour, _): (&Neighbour, u64)| neighbour.is_there() && neighbour.agrees();
        self.is_at_home() || self.neighbour.is_some_and(reaches)
    }

    fn is_at_home(&self) -> bool {
        self.home.is_some()
    }

    fn direct(&mut self, direct: Direct<'_>) -> bool {
        match self.home {
            Some(home) => self.goes_home(home, direct),
            None => self.goes_directly(direct),
        }
    }

    fn packet_in_place(
        &mut self,
        half: Half,
        headers: &Headers,
        (at, len): (u64, usize),
        memory: &mut dyn ReadInPlace,
    ) -> bool {
        let Some((ring, ends)) = self.ring_for(half) else { return false };
        if !ring.put(ends, headers, len, |each| memory.read(at, len, each)) {
            return false;
        }
        self.filled_ring = true;
        self.ring_packets += 1;
        self.sent_bytes += len as u64;
        true
    }

    fn counts_packets(&self, half: Half) -> bool {
        self.ring_for(half).is_some()
    }

    fn room(&mut self, to: To<'_>, dest_qpn: u32, bytes: u64, now: Instant) -> Option<bool> {
        match to {
            To::Peer(half) => match self.ring_for(half) {
                Some((ring, _)) => Some(self.ring_has_room(ring, bytes, now)),
                None => self.way?.room(bytes, now),
            },
            To::Ah(ah) => {
                let ah = handle_of(&**ah)?;
                match ah.ring(dest_qpn, self.staged() == 0) {
                    Some((ring, _)) => Some(self.ring_has_room(&ring, bytes, now)),
                    None => ah.way_by_wire(self.adapter, dest_qpn).ok()?.room(bytes, now),
                }
            }
        }
    }
}

/// Completions and events of one QP on their way to their queues.
pub(super) struct QpSink<'a> {
    pub(super) qp: &'a Qp,
    pub(super) adapter: &'a Adapter,
    /// Whether the directory shows the QP as open to its peer.
    pub(super) open: bool,
}

impl Sink for QpSink<'_> {
    fn sent(&mut self, completion: Completion) {
        self.shut_unless(completion.status == WcStatus::Success);
        if let Some(cq) = &self.qp.init.send_cq {
            cq.push(completion, || self.adapter.now_ns());
        }
    }

    fn received(&mut self, completion: Completion) {
        self.shut_unless(completion.status == WcStatus::Success);
        if let Some(cq) = &self.qp.init.recv_cq {
            cq.push(completion, || self.adapter.now_ns());
        }
    }

    fn event(&mut self, event: EventType) {
        let of_errors = [EventType::QpFatal, EventType::QpReqErr, EventType::QpAccessErr];
        self.shut_unless(!of_errors.contains(&event));
        let source = EventSource::Qp(self.qp.this.clone());
        self.adapter.raise(AsyncEvent { event, source });
    }

    fn page_fault(&mut self, fault: PageFault) -> bool {
        self.adapter.page_fault(self.qp.number, fault)
    }
}

impl QpSink<'_> {
    /// Before the program hears of an error, which ends the connection: the peer is kept out, and
    /// has left.
    fn shut_unless(&mut self, fine: bool) {
        if !fine && std::mem::take(&mut self.open) {
            self.qp.door.set(None);
            self.adapter.directory().shut_qp(self.qp.number);
        }
    }
}
