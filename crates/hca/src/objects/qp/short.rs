//! Short messages that pass through a ring one at a time: what their transport makes of them
//! ([`Transport::make_short`] and its kin) goes straight into the ring, and out of it.

use super::turns::slot_of;
use super::{Core, LINK_BACKLOG, Qp};
use crate::adapter::Adapter;
use crate::adapter::rings::{Ends, PREFIX_LEN, RING_MTU, RingTo};
use crate::objects::cq::Cq;
use std::sync::Arc;
use std::time::Instant;
use transport::values::{Completion, Payload, SendWr};
use transport::{Count, Counter, ShortPayload, ShortWr, Transport};
use wire::{ACK_LEN, SHORT_PACKET, Short};

impl Core {
    /// The transport, and the ring that its packets pass through, if it has one and nothing has to
    /// be asked before.
    fn short_way(&mut self, adapter: &Adapter) -> Option<Way<'_>> {
        let goes = self.by_ring && !self.destroyed && self.busy_until.is_none();
        if !goes || self.counters.is_some() || !adapter.reads_ring_from(slot_of(self)) {
            return None;
        }
        let ring = self.ring.as_ref().filter(|ring| ring.is_open() && !ring.is_tight())?;
        Some(Way { transport: &mut self.transport, ring, ends: self.ends.as_ref()? })
    }
}

/// What short packets need.
struct Way<'a> {
    transport: &'a mut Transport,
    ring: &'a Arc<RingTo>,
    ends: &'a Ends,
}

impl Way<'_> {
    /// Pushes the packet that `make` makes, if it does: whether it did, and whether that left.
    fn push(
        &mut self,
        make: impl FnOnce(&mut Transport, &mut [u8; SHORT_PACKET]) -> Option<usize>,
    ) -> (bool, bool) {
        let mut record = [0; PREFIX_LEN + SHORT_PACKET];
        let packet = record.last_chunk_mut();
        let made = packet.and_then(|packet| make(self.transport, packet));
        let record = made.and_then(|len| record.get_mut(..PREFIX_LEN + len));
        (made.is_some(), record.is_some_and(|record| self.ring.push(self.ends, record)))
    }
}

impl Qp {
    /// Posts the request that `make` makes as the only one that there is, and emits it, in the
    /// caller's thread. Otherwise nothing has happened, and it is to be posted as any other.
    pub fn post_short(&self, make: impl FnOnce() -> Option<ShortWr>) -> bool {
        let mut core = self.core();
        if !core.by_ring {
            return false;
        }
        let Ok(adapter) = self.adapter() else { return false };
        let core = &mut *core;
        let least_wait = core.transport.least_wait();
        let is_awaited = core.appointment.comes_within(least_wait);
        let Some(mut way) = core.short_way(&adapter) else { return false };
        if way.transport.has_requests() {
            return false;
        }
        let Some(wr) = make() else { return false };
        let bytes = wr.len() as u64;
        // To read the clock takes a good part of what all of this does.
        let now = (!is_awaited).then(Instant::now);
        let post = |transport: &mut Transport, packet: &mut _| {
            transport.post_lone(adapter.keys(), wr, packet, now)
        };
        match way.push(post) {
            (_, true) => _ = way.ring.rouse(),
            (true, false) => {
                way.transport.forget_lone();
                return false;
            }
            (false, false) => return false,
        }
        count_sent(&adapter, bytes);
        adapter.directory().add_traffic(self.number, bytes, 0);
        core.busy_until = pcie::owed();
        if core.busy_until.is_some() || !is_awaited {
            let deadline = core.busy_until.or_else(|| core.transport.lone_deadline());
            self.meet(&adapter, core, deadline);
            if deadline.zip(now).is_some_and(|(deadline, now)| deadline <= now + least_wait) {
                core.appointment.is_within(least_wait);
            }
        }
        match now {
            Some(now) => self.note_post(core, now),
            None => core.posts.note_alone(self.polls()),
        }
        true
    }

    /// The same for a request that may be short.
    pub(super) fn post_if_short(&self, wr: &SendWr) -> bool {
        self.post_short(|| {
            let imm = wr.op.plain_send()?;
            let payload = match &wr.payload {
                Payload::Gather(list) => match list[..] {
                    [entry] => ShortPayload::Memory(entry),
                    _ => return None,
                },
                Payload::Inline(bytes) => {
                    let mut copy = self.inline_data(bytes.len()).ok()?;
                    copy.extend(bytes.iter().copied());
                    ShortPayload::Inline(copy)
                }
            };
            Some(ShortWr { wr_id: wr.wr_id, imm, flags: wr.flags, payload })
        })
    }

    /// Emits the request that was posted last, if it is a short SEND and the only one; otherwise
    /// nothing has happened.
    pub(super) fn transmit_short(&self, adapter: &Adapter, core: &mut Core, now: Instant) -> bool {
        if !core.transport.may_make_short() {
            return false;
        }
        let Some(mut way) = core.short_way(adapter) else { return false };
        if !way.push(|transport, packet| transport.make_short(adapter.keys(), packet)).1 {
            return false;
        }
        let Way { transport, ring, .. } = way;
        let bytes = transport.sent_short(now);
        ring.rouse();
        count_sent(adapter, bytes);
        adapter.directory().add_traffic(self.number, bytes, 0);
        let deadline = transport.short_deadline();
        core.busy_until = pcie::owed();
        self.meet(adapter, core, core.busy_until.or(deadline));
        true
    }

    /// Takes a short packet that came by a ring from one end to another, if it is this one's and
    /// its next; otherwise nothing has happened.
    pub(crate) fn take_short(
        &self,
        adapter: &Adapter,
        from_to: &Ends,
        packet: &Short<'_>,
        now: Instant,
    ) -> bool {
        let mut core = self.core();
        let (core, directory) = (&mut *core, adapter.directory());
        let answers = core.answers_by_ring;
        let Some(Way { transport, ring, ends }) = core.short_way(adapter) else {
            return false;
        };
        // As the peer's address, so must ours be the one that the address vector names (IBA 9.6.1).
        if (from_to.src, from_to.dst) != (ends.dst, ends.src) {
            return false;
        }
        let mut owes = false;
        let lost;
        match packet {
            Short::Ack(ack) => {
                let Some(done) = transport.acknowledged_short(ack.psn, now) else { return false };
                lost = complete(adapter, self.init.send_cq.as_deref(), done);
            }
            Short::Send(..) if !answers => return false,
            Short::Send(send, payload) => {
                let done = transport.take_short(send, payload, adapter.keys(), (now, RING_MTU));
                if done.is_none() {
                    return false;
                }
                lost = complete(adapter, self.init.recv_cq.as_deref(), done);
                directory.add_traffic(self.number, 0, payload.len() as u64);
                // Nobody is told that a message has come whose completion is lost; and where links
                // are paced it has come once they have carried it.
                let is_there = !pcie::owes_more(now, LINK_BACKLOG);
                let is_said = || is_there && acknowledge(adapter, transport, ring, ends);
                if !lost && !is_said() {
                    transport.owe_short_ack();
                    owes = is_there;
                }
            }
        }
        core.busy_until = pcie::owed();
        if owes {
            self.with_cx(adapter, core, Transport::end_of_batch);
        } else if core.busy_until.is_some() || lost {
            // A timer is set for when the links are free; a completion that was lost ends the queue
            // pair.
            self.with_cx(adapter, core, |_, _| ());
        }
        true
    }
}

/// Acknowledges the message that was taken last; `false` if the ring is full.
fn acknowledge(adapter: &Adapter, transport: &Transport, ring: &Arc<RingTo>, ends: &Ends) -> bool {
    let mut record = [0; PREFIX_LEN + ACK_LEN];
    if let Some(packet) = record.last_chunk_mut() {
        transport.short_ack().emit(packet);
    }
    let pushed = ring.push(ends, &mut record);
    if pushed {
        match adapter.rings() {
            Some(rings) => rings.owed.rouse(ring),
            None => _ = ring.rouse(),
        }
        count_sent(adapter, 0);
    }
    pushed
}

/// Reports a completion, if there is one; whether it was lost, or one before it.
fn complete(adapter: &Adapter, cq: Option<&Cq>, done: Option<Completion>) -> bool {
    let (Some(cq), Some(done)) = (cq, done) else { return false };
    cq.push(done, || adapter.now_ns());
    cq.failed()
}

/// Counts a packet with so many bytes of payload that passed through a ring.
fn count_sent(adapter: &Adapter, bytes: u64) {
    let directory = adapter.directory();
    directory.count(Counter::SentPackets, 1);
    directory.count(Counter::SentBytes, bytes);
    directory.count(Counter::RingPackets, 1);
}
