//! The state of a queue pair's send side.

use super::ragged::Ragged;
use super::timing::{AckTimers, RoundTrip};
use super::window::{Pace, Window};
use super::wqe::{Phase, Wqe};
use std::collections::VecDeque;
use std::time::Instant;
use wire::{Psn, Syndrome};

/// The next packet to emit.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cursor {
    /// Request, counted from the oldest.
    pub(crate) wqe: usize,
    /// PSN within it.
    pub(crate) packet: u32,
}

/// State of the send side.
pub(crate) struct Requester {
    /// Requests not completed, oldest first.
    pub(crate) queue: VecDeque<Wqe>,
    /// How many of these the HCA itself posted.
    offloaded: usize,
    pub(crate) cursor: Cursor,
    /// PSN of the next request that begins.
    pub(crate) next_psn: Psn,
    /// The PSN after the highest one ever asked for.
    pub(crate) high: Psn,
    /// End of the axis of costs.
    pub(crate) next_base: u64,
    pub(crate) window: Window,
    pub(crate) pace: Pace,
    pub(crate) rtt: RoundTrip,
    pub(crate) timers: AckTimers,
    /// ACK timeouts since the peer last made progress.
    pub(crate) timeouts: u32,
    /// READ and atomic packets that the peer has not finished answering.
    pub(crate) reads: u32,
    /// READ and atomic requests begun and not complete.
    pub(crate) answers_due: u32,
    pub(crate) since_ack_req: u64,
    pub(crate) retry_left: u8,
    pub(crate) rnr_left: u8,
    /// The peer asked us to wait.
    pub(crate) rnr_until: Option<Instant>,
    /// The oldest PSN when it last did.
    pub(crate) not_ready: Option<Psn>,
    /// An acknowledge of which a part waits for another call.
    pub(crate) rest: Option<(Psn, Syndrome)>,
    /// The oldest PSN at the last go-back: one loss is reported by many packets and repaired once.
    pub(crate) recovering: Option<Psn>,
    /// The PSN after the last probe.
    pub(crate) probe_end: Option<Psn>,
    /// One packet whose round trip is being measured.
    pub(crate) sample: Option<(Psn, Instant)>,
    /// Requests that do not wait to go directly, since one that might have was refused.
    pub(crate) discouraged: u32,
    pub(crate) ragged: Ragged,
    /// How often the program has posted since it last asked for completions.
    pub(crate) posts_in_a_row: u32,
}

impl Requester {
    /// One whose requests go to `queue`, which is empty.
    pub(crate) fn new(queue: VecDeque<Wqe>, first: Psn, window_bytes: u64, mtu: u32) -> Requester {
        Requester {
            queue,
            offloaded: 0,
            cursor: Cursor::default(),
            next_psn: first,
            high: first,
            next_base: 0,
            window: Window::new(window_bytes, mtu),
            pace: Pace::new(window_bytes, mtu),
            rtt: RoundTrip::default(),
            timers: AckTimers::default(),
            timeouts: 0,
            reads: 0,
            answers_due: 0,
            since_ack_req: 0,
            retry_left: 0,
            rnr_left: 0,
            rnr_until: None,
            not_ready: None,
            rest: None,
            recovering: None,
            probe_end: None,
            sample: None,
            discouraged: 0,
            ragged: Ragged::default(),
            posts_in_a_row: 0,
        }
    }

    /// Forgets everything but the memory of its queue.
    pub(crate) fn restart(&mut self, first: Psn, window_bytes: u64, mtu: u32) {
        let mut queue = std::mem::take(&mut self.queue);
        queue.clear();
        *self = Requester::new(queue, first, window_bytes, mtu);
    }

    /// Requests of the program that are not complete.
    pub(crate) fn posted(&self) -> usize {
        self.queue.len() - self.offloaded
    }

    /// Appends a request that the HCA itself posts.
    pub(crate) fn offload(&mut self, wqe: Wqe) {
        self.queue.push_back(wqe);
        self.offloaded += 1;
    }

    /// The oldest unanswered PSN.
    pub(crate) fn una(&self) -> Psn {
        match self.queue.front() {
            Some(wqe) if wqe.has_psns() => wqe.first.plus(wqe.acked),
            _ => self.next_psn,
        }
    }

    /// The PSN of the next packet to emit.
    pub(crate) fn cursor_psn(&self) -> Psn {
        match self.queue.get(self.cursor.wqe) {
            Some(wqe) if wqe.has_psns() => wqe.first.plus(self.cursor.packet),
            _ => self.next_psn,
        }
    }

    /// What is in flight, in bytes of cost.
    pub(crate) fn flight(&self, mtu: u32) -> u64 {
        let at = |index: usize, packet: u32| match self.queue.get(index) {
            Some(wqe) if wqe.phase != Phase::Posted => wqe.position(packet, mtu),
            _ => self.next_base,
        };
        let oldest = self.queue.front().map_or(0, |wqe| wqe.acked);
        at(self.cursor.wqe, self.cursor.packet).saturating_sub(at(0, oldest))
    }

    /// Everything from the oldest unanswered PSN on will be emitted again.
    pub(crate) fn go_back(&mut self) {
        let packet = self.queue.front().map_or(0, |wqe| wqe.acked);
        self.cursor = Cursor { wqe: 0, packet };
        self.reads = 0;
        self.since_ack_req = 0;
        self.sample = None;
        self.probe_end = None;
        self.timers.stop();
    }

    /// Has `look` see the oldest request, which then is no more; the cursor stays on its packet.
    pub(crate) fn pop<R>(&mut self, look: impl FnOnce(&mut Wqe) -> R) -> Option<R> {
        let wqe = self.queue.front_mut()?;
        self.offloaded -= usize::from(wqe.offload.is_some());
        if wqe.is_answered() && wqe.has_psns() {
            self.answers_due = self.answers_due.saturating_sub(1);
        }
        let seen = look(wqe);
        match self.cursor.wqe {
            0 => self.cursor.packet = 0,
            _ => self.cursor.wqe -= 1,
        }
        match self.queue.len() {
            // It begins anew at its first place, so that a queue that is never full touches little
            // memory.
            1 => self.queue.clear(),
            _ => drop(self.queue.pop_front()),
        }
        Some(seen)
    }
}
