//! What turns of progress ask of a queue pair: to take a packet, to answer, to go on. All that runs
//! its transport runs here.

use super::emit::{Out, QpSink};
use super::{Core, LINK_BACKLOG, Qp};
use crate::adapter::Adapter;
use crate::adapter::rings::RING_MTU;
use crate::memory::key_space::parts_reached;
use engine_thread::{Uncancelled, try_lock};
use link::Batch;
use registry::QPN_INDEX_BITS;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use transport::values::QpState;
use transport::{Both, Budget, Count, Counter, Cx, Rx, Share, Transport};
use wire::frame::Frame;

/// What one visit to a queue pair sends: some tenths of a millisecond.
pub(super) const QUANTUM: Budget = Budget::of(Share::new(128, 256 << 10));
/// What a queue pair still sends in a turn whose time is over.
const LAST_WORDS: Budget = Budget::of(Share::new(2, 4 << 10));
/// What a call of the program's sends before it returns: its queue pair is locked meanwhile, and a
/// turn may wait for that.
const CALL: Budget = Budget::of(Share::new(512, 1 << 20));
/// Packets that a queue pair takes at a time: it is locked meanwhile, too.
const PACKETS_A_ROW: usize = 32;

/// Payload after which acknowledges go out within a turn: a sender with a small window waits for
/// them.
pub(crate) const BYTES_AN_ANSWER: usize = 64 << 10;

/// Takes a packet, or does not.
pub(crate) type Take<'a> = dyn FnMut(&Rx<'_>) -> bool + 'a;

/// Packets for one queue pair that came by a ring, one behind the other, in a turn.
pub(crate) struct InARow<'a> {
    pub(crate) now: Instant,
    /// Whether the first is a request.
    pub(crate) begins_with_request: bool,
    /// Hands them out until it is answered `false`, and says whether nothing waits in any ring.
    pub(crate) next: &'a mut dyn FnMut(&mut Take<'_>) -> bool,
    /// Whether it may answer after so many bytes of payload.
    pub(crate) has_time: &'a dyn Fn(usize) -> bool,
}

/// What came of packets in a row.
#[derive(Default)]
pub(crate) struct Visit {
    pub(crate) packets: usize,
    /// Bytes of payload.
    pub(crate) bytes: usize,
    /// The queue pair has answered, and need not be asked to at the end of the burst.
    pub(crate) answered: bool,
}

/// What a queue pair has taken of them.
#[derive(Default)]
struct Row {
    packets: usize,
    bytes: usize,
    /// Bytes of those that came from its peer.
    own_bytes: usize,
    /// It takes no other now.
    stops: bool,
    /// There was a request of its peer among them.
    serves: bool,
}

impl Row {
    fn is_over(&self) -> bool {
        self.stops || self.packets >= PACKETS_A_ROW || self.bytes >= BYTES_AN_ANSWER
    }
}

impl Qp {
    /// The device has failed: whoever waits for an answer gets an error, and all requests are
    /// flushed.
    pub(crate) fn end_with_device(&self, adapter: &Adapter) {
        let mut core = self.core();
        if core.destroyed {
            return;
        }
        self.with_cx(adapter, &mut core, |transport, cx| transport.end_with_device(cx));
    }

    /// Tells which packets are for it: all of a queue pair without a connection, and those of its
    /// peer else.
    fn takes_from(&self, core: &Core) -> impl Fn(&Rx<'_>) -> bool + use<> {
        let (is_there, is_connected) = (!core.destroyed, self.init.qp_type.is_connected());
        let ends = core.ends;
        // As the peer's address, so must ours be the one that the address vector names (IBA 9.6.1).
        let is_peers = move |rx: &Rx<'_>| ends.is_some_and(|e| e.dst == rx.src && e.src == rx.dst);
        move |rx| is_there && (!is_connected || is_peers(rx))
    }

    /// One packet from the wire. `batch` is room for what it makes the QP send; `endings` is how
    /// many requests may end in this turn, by whatever packets.
    pub(crate) fn receive(
        &self,
        adapter: &Adapter,
        rx: &Rx<'_>,
        now: Instant,
        batch: &mut Batch,
        endings: &mut u32,
    ) {
        let mut core = self.core();
        if !self.takes_from(&core)(rx) {
            adapter.directory().count(Counter::RxDropped, 1);
            return;
        }
        adapter.directory().add_traffic(self.number, 0, rx.payload_len() as u64);
        if !rx.headers.bth.opcode.is_response() {
            core.answers_by_ring = rx.mtu.is_some();
        }
        let budget = QUANTUM.ending(*endings);
        *endings = self.run(adapter, &mut core, (now, budget), Some(batch), |transport, cx| {
            transport.receive(rx, cx);
            cx.budget.endings()
        });
    }

    /// Packets in a row. If nothing else waits, or they carry much, a connected queue pair answers
    /// at once and goes on, as at the end of a burst.
    pub(crate) fn receive_row(
        &self,
        adapter: &Adapter,
        packets: InARow<'_>,
        batch: &mut Batch,
        endings: &mut u32,
    ) -> Visit {
        let InARow { now, begins_with_request, next, has_time } = packets;
        let mut core = self.core();
        let is_ours = self.takes_from(&core);
        let (is_connected, is_there) = (self.init.qp_type.is_connected(), !core.destroyed);
        let directory = adapter.directory();
        // Where answers are for the wire so far, the first request by a ring decides that anew.
        let was_by_ring = core.answers_by_ring;
        core.answers_by_ring |= begins_with_request;
        let by_ring = core.answers_by_ring;
        let held_back = core.holds_back(now);
        let (mut row, mut answered, mut only_ack) = (Row::default(), false, false);
        let limits = (now, QUANTUM.ending(*endings));
        self.stage(adapter, &mut core, limits, Some(&mut *batch), |transport, cx| {
            let was_all = next(&mut |rx| {
                if row.is_over() || !(by_ring || rx.headers.bth.opcode.is_response()) {
                    return false;
                }
                row.packets += 1;
                row.bytes += rx.payload_len();
                if is_ours(rx) {
                    row.own_bytes += rx.payload_len();
                    row.serves |= !rx.headers.bth.opcode.is_response();
                    cx.budget = QUANTUM.ending(cx.budget.endings());
                    transport.receive(rx, cx);
                    // What comes behind a completion that was lost ends with the queue pair. And
                    // one packet's work shall not keep the answer to another back.
                    row.stops = self.lost_completions() || cx.tx.is_busy(now);
                } else {
                    directory.count(Counter::RxDropped, 1);
                    // Nor does it say where our peer awaits its answers.
                    row.stops = !was_by_ring;
                }
                true
            });
            *endings = cx.budget.endings();
            let knows_way = was_by_ring || row.serves || !begins_with_request;
            // A datagram may have to find its way, by locks that are held here.
            let may_send = is_connected && knows_way && is_there;
            let rests = row.stops || held_back || !may_send;
            let is_end = was_all || row.bytes >= BYTES_AN_ANSWER;
            let is_free = !pcie::owes_more(now, LINK_BACKLOG);
            answered = !rests && is_end && is_free && has_time(row.bytes);
            if answered {
                only_ack = transport.owes_only_an_ack();
                cx.budget = QUANTUM;
                transport.transmit(cx);
            }
        });
        core.answers_by_ring = was_by_ring || row.serves;
        directory.add_traffic(self.number, 0, row.own_bytes as u64);
        match answered {
            true => self.leave(adapter, core, only_ack, batch),
            false => batch.flush(adapter.endpoint()),
        }
        Visit { packets: row.packets, bytes: row.bytes, answered }
    }

    /// One Ethernet frame that steering chose the QP for; `parsed` is what it saw of it.
    pub(crate) fn receive_frame(
        &self,
        adapter: &Adapter,
        bytes: &[u8],
        parsed: &Frame,
        now: Instant,
        batch: &mut Batch,
    ) {
        let mut core = self.core();
        if core.destroyed {
            return adapter.directory().count(Counter::RxDropped, 1);
        }
        adapter.directory().add_traffic(self.number, 0, bytes.len() as u64);
        if let Some(queue) = self.init.rss.as_ref().and_then(|rss| rss.queue(parsed)) {
            return queue.receive_frame(adapter, bytes);
        }
        self.run(adapter, &mut core, (now, QUANTUM), Some(batch), |transport, cx| {
            transport.receive_frame(bytes, cx)
        });
    }

    /// The end of a burst of packets: acknowledges go out, and what the window now allows. Where it
    /// `may_wait`, answers whether the acknowledge waits for what the program sends: then
    /// [`Qp::stop_waiting`] is to be called before the next turn.
    pub(crate) fn end_of_batch(
        &self,
        adapter: &Adapter,
        (now, may_wait): (Instant, bool),
        batch: &mut Batch,
    ) -> bool {
        let mut core = self.core();
        if core.destroyed {
            return false;
        }
        let only_ack = core.transport.owes_only_an_ack();
        let is_by_wire = !core.by_ring && !core.answers_by_ring;
        let waits = may_wait && is_by_wire && core.transport.burst_ended(now);
        if !core.holds_back(now) {
            self.stage(adapter, &mut core, (now, QUANTUM), Some(&mut *batch), Transport::transmit);
        }
        // What left may have taken it along.
        let waits = waits && core.transport.has_waiting_ack();
        self.leave(adapter, core, only_ack, batch);
        waits
    }

    /// Somebody looks for packets, and the program has not answered what came: if the acknowledge
    /// of that still waits, it leaves.
    pub(crate) fn stop_waiting(&self, adapter: &Adapter) {
        let mut core = self.core();
        if core.destroyed || !core.transport.has_waiting_ack() {
            return;
        }
        // Who holds back has a timer for when the links are free.
        if core.busy_until.is_none() {
            self.with_cx(adapter, &mut core, Transport::end_of_batch);
        }
    }

    /// Whether an acknowledge waits, or somebody else is at it. Takes no lock that is taken.
    pub(crate) fn may_have_waiting(&self) -> bool {
        try_lock(&self.core).is_none_or(|core| core.transport.has_waiting_ack())
    }

    /// Sends what the end of a burst has staged in `batch`, and is done with the queue pair.
    fn leave(
        &self,
        adapter: &Adapter,
        mut core: MutexGuard<'_, Core>,
        only_ack: bool,
        batch: &mut Batch,
    ) {
        let left = core.transport.has_ack_pending();
        if !only_ack || left || batch.packets() > 1 {
            batch.flush(adapter.endpoint());
        }
        self.arm(adapter, &mut core);
        // A program that spins on its memory has seen what the acknowledge is for, and posts now.
        drop(core);
        batch.flush(adapter.endpoint());
    }

    /// The end of a burst for which this turn has no time any more. Acknowledges go out all the
    /// same: the program knows already what they are for, and may end or destroy the queue pair
    /// before the next turn.
    pub(crate) fn put_off(&self, adapter: &Adapter, now: Instant, batch: &mut Batch) {
        let mut core = self.core();
        if core.destroyed {
            return;
        }
        if core.transport.has_ack_pending() && !core.holds_back(now) {
            self.run(adapter, &mut core, (now, LAST_WORDS), Some(batch), Transport::end_of_batch);
        }
        core.transport.put_off(now);
        self.arm(adapter, &mut core);
    }

    /// Emits what window and peer allow, unless the QP holds back.
    pub(super) fn transmit(&self, adapter: &Adapter, core: &mut Core, now: Instant) {
        if core.holds_back(now) {
            return self.arm(adapter, core);
        }
        if !self.transmit_short(adapter, core, now) {
            self.run(adapter, core, (now, CALL), None, Transport::transmit);
            match self.missed.load(Relaxed) && self.missed.swap(false, Relaxed) {
                true => self.come_due(adapter, core, now, None),
                false => self.arm(adapter, core),
            }
        }
    }

    pub(super) fn with_cx<R>(
        &self,
        adapter: &Adapter,
        core: &mut Core,
        call: impl FnOnce(&mut Transport, &mut Cx<'_>) -> R,
    ) -> R {
        let result = self.run(adapter, core, (Instant::now(), CALL), None, call);
        self.arm(adapter, core);
        result
    }

    /// Has packets to the peer pass through a ring from now on: one that is read, once nothing is
    /// under way by the wire that they would overtake, which of an unreliable connection's nobody
    /// knows. Answers whether that changed.
    fn choose_way(&self, adapter: &Adapter, core: &mut Core) -> bool {
        let before = core.by_ring;
        if let Some(ring) = &core.ring {
            let open = ring.is_open();
            if !open && before {
                (core.ring, core.by_ring) = (None, false);
            } else if open && !before && self.may_go_by_ring(adapter, core) {
                core.transport.set_request_mtu(RING_MTU);
                core.by_ring = true;
            } else if before && self.answers_would_be_lost(adapter, core) {
                core.by_ring = false;
            }
        }
        if !core.by_ring {
            core.transport.return_to_path_mtu();
        }
        core.by_ring != before
    }

    /// Whether the peer has a new ring, as after the end of its last other queue pair, that is not
    /// read yet.
    fn answers_would_be_lost(&self, adapter: &Adapter, core: &Core) -> bool {
        self.init.qp_type.is_reliable()
            && !adapter.reads_ring_from(slot_of(core))
            && core.transport.has_nothing_under_way()
    }

    /// The answers have to be able to come by a ring, too.
    fn may_go_by_ring(&self, adapter: &Adapter, core: &Core) -> bool {
        let is_ready = core.transport.state() == QpState::Rts;
        is_ready
            && adapter.reads_ring_from(slot_of(core))
            && match self.init.qp_type.is_reliable() {
                true => core.transport.has_nothing_under_way(),
                false => !core.used_wire && core.transport.has_nothing_under_way(),
            }
    }

    /// Runs `call` on the transport; without a `batch` it takes one if there is need for it. What
    /// it emits leaves before the lock does, or another thread's packets would overtake it.
    pub(super) fn run<R>(
        &self,
        adapter: &Adapter,
        core: &mut Core,
        limits: (Instant, Budget),
        mut batch: Option<&mut Batch>,
        call: impl FnOnce(&mut Transport, &mut Cx<'_>) -> R,
    ) -> R {
        let _whole = Uncancelled::begin();
        let result = self.stage(adapter, core, limits, batch.as_deref_mut(), call);
        if let Some(batch) = batch {
            batch.flush(adapter.endpoint());
        }
        result
    }

    /// The same, but packets that it emits stay in a `batch` that is given.
    fn stage<R>(
        &self,
        adapter: &Adapter,
        core: &mut Core,
        (now, budget): (Instant, Budget),
        batch: Option<&mut Batch>,
        call: impl FnOnce(&mut Transport, &mut Cx<'_>) -> R,
    ) -> R {
        let new_way = self.choose_way(adapter, core);
        let ring = core.ring.as_deref().filter(|ring| core.by_ring || ring.is_open());
        let ring = ring.zip(core.ends.as_ref());
        let mut tx = Out {
            adapter,
            now,
            parts: parts_reached(),
            batch,
            own_batch: None,
            way: core.way.as_ref(),
            neighbour: core.neighbour.as_ref().map(|(neighbour, ends)| (&**neighbour, *ends)),
            home: core.home.as_ref().map(|(door, ends)| (&**door, *ends)),
            ring,
            by_ring: core.by_ring && ring.is_some(),
            answers_by_ring: core.answers_by_ring,
            path_mtu: core.transport.path_mtu(),
            used_wire: false,
            ring_packets: 0,
            filled_ring: false,
            datagrams_by_ring: false,
            went_directly: None,
            sent_bytes: 0,
            number: self.number,
            frames: self.frame_port().zip(core.frames.first_mut()),
        };
        let open = core.shown.1 && adapter.has_neighbours();
        let mut sink = QpSink { qp: self, adapter, open };
        let directory = adapter.directory();
        let both = core.counters.as_deref().map(|set| Both(directory, set));
        let counters: &dyn Count = match &both {
            Some(both) => both,
            None => directory,
        };
        let mut cx = Cx {
            now,
            tx: &mut tx,
            keys: adapter.keys(),
            xrc: &*self.xrc,
            sink: &mut sink,
            counters,
            budget,
        };
        let result = call(&mut core.transport, &mut cx);
        if let Some(until) = pcie::owed() {
            core.busy_until = core.busy_until.max(Some(until));
        }
        if !core.destroyed && self.lost_completions() {
            core.transport.fail(&mut cx);
        }
        tx.finish();
        if let (true, Some((ring, _))) = (tx.filled_ring, ring) {
            ring.rouse();
        }
        core.used_wire |= tx.used_wire;
        if let Some(ended) = tx.went_directly {
            core.posts.went_directly(ended);
        }
        let first_by_ring = tx.datagrams_by_ring && !core.datagrams_by_ring;
        core.datagrams_by_ring |= tx.datagrams_by_ring;
        let was_shut = open && !sink.open;
        if let Some((port, frames)) = self.frame_port().zip(core.frames.first_mut()) {
            frames.flush(port, adapter.endpoint().stats());
        }
        if core.state() != core.shown || was_shut || new_way || first_by_ring {
            self.show(adapter, core);
        }
        result
    }
}

/// The slot of the connected peer's device.
pub(super) fn slot_of(core: &Core) -> u16 {
    (core.transport.dest_qpn() >> QPN_INDEX_BITS) as u16
}
