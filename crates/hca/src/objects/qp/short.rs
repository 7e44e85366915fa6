//! Short messages that pass through a ring one at a time: what their transport makes of them
//! ([`Transport::make_short`] and its kin) goes straight into the ring, and out of it.

use super::turns::slot_of;
use super::{Core, LINK_BACKLOG, Qp};
use crate::adapter::Adapter;
use crate::adapter::rings::{Ends, PREFIX_LEN, RING_MTU, RingTo};
use crate::objects::cq::Cq;
use std::time::Instant;
use transport::values::Completion;
use transport::{Count, Counter, Transport};
use wire::{ACK_LEN, SHORT_PACKET, Short};

impl Core {
    /// The transport, and the ring that its packets pass through, if it has one and nothing has to
    /// be asked before.
    fn short_way(&mut self, adapter: &Adapter) -> Option<(&mut Transport, &RingTo, &Ends)> {
        let goes = self.by_ring && !self.destroyed && self.busy_until.is_none();
        if !goes || self.counters.is_some() || !adapter.reads_ring_from(slot_of(self)) {
            return None;
        }
        let ring = self.ring.as_deref().filter(|ring| ring.is_open() && !ring.is_tight())?;
        Some((&mut self.transport, ring, self.ends.as_ref()?))
    }
}

impl Qp {
    /// Emits the request that was posted last, if it is a short SEND and the only one; otherwise
    /// nothing has happened.
    pub(super) fn transmit_short(&self, adapter: &Adapter, core: &mut Core, now: Instant) -> bool {
        let Some((transport, ring, ends)) = core.short_way(adapter) else { return false };
        let mut record = [0; PREFIX_LEN + SHORT_PACKET];
        let packet = record.last_chunk_mut::<SHORT_PACKET>();
        let made = packet.and_then(|packet| transport.make_short(adapter.keys(), packet));
        let record = made.and_then(|len| record.get_mut(..PREFIX_LEN + len));
        if !record.is_some_and(|record| ring.push(ends, record)) {
            return false;
        }
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
        let Some((transport, ring, ends)) = core.short_way(adapter) else { return false };
        // As the peer's address, so must ours be the one that the address vector names (IBA 9.6.1).
        if (from_to.src, from_to.dst) != (ends.dst, ends.src) {
            return false;
        }
        let mut owes = false;
        match packet {
            Short::Ack(ack) => {
                let Some(done) = transport.acknowledged_short(ack.psn, now) else { return false };
                complete(adapter, self.init.send_cq.as_deref(), done);
            }
            Short::Send(..) if !answers => return false,
            Short::Send(send, payload) => {
                let done = transport.take_short(send, payload, adapter.keys(), (now, RING_MTU));
                if done.is_none() {
                    return false;
                }
                complete(adapter, self.init.recv_cq.as_deref(), done);
                directory.add_traffic(self.number, 0, payload.len() as u64);
                // Nobody is told that a message has come whose completion is lost; and where links
                // are paced it has come once they have carried it.
                let is_there = !pcie::owes_more(now, LINK_BACKLOG);
                let is_said = || is_there && acknowledge(adapter, transport, ring, ends);
                if !self.lost_completions() && !is_said() {
                    transport.owe_short_ack();
                    owes = is_there;
                }
            }
        }
        core.busy_until = pcie::owed();
        if owes {
            self.with_cx(adapter, core, Transport::end_of_batch);
        } else if core.busy_until.is_some() || self.lost_completions() {
            // A timer is set for when the links are free; a completion that was lost ends the queue
            // pair.
            self.with_cx(adapter, core, |_, _| ());
        }
        true
    }
}

/// Acknowledges the message that was taken last; `false` if the ring is full.
fn acknowledge(adapter: &Adapter, transport: &Transport, ring: &RingTo, ends: &Ends) -> bool {
    let mut record = [0; PREFIX_LEN + ACK_LEN];
    if let Some(packet) = record.last_chunk_mut() {
        transport.short_ack().emit(packet);
    }
    let pushed = ring.push(ends, &mut record);
    if pushed {
        ring.rouse();
        count_sent(adapter, 0);
    }
    pushed
}

fn complete(adapter: &Adapter, cq: Option<&Cq>, done: Option<Completion>) {
    if let (Some(cq), Some(done)) = (cq, done) {
        cq.push(done, || adapter.now_ns());
    }
}

/// Counts a packet with so many bytes of payload that passed through a ring.
fn count_sent(adapter: &Adapter, bytes: u64) {
    let directory = adapter.directory();
    directory.count(Counter::SentPackets, 1);
    directory.count(Counter::SentBytes, bytes);
    directory.count(Counter::RingPackets, 1);
}
