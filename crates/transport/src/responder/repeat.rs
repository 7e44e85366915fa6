//! Requests seen before (IBA 9.7.5.1.4): they are answered again, and nothing takes effect twice.

use crate::qp::Transport;
use crate::qp::responder::most_owed;
use crate::qp::response::{Answer, ReadAnswer, packets_of};
use crate::sabotage::{self, Sabotage};
use crate::values::{MAX_MESSAGE, Remote};
use crate::{Counter, Cx, Rx};
use wire::{Operation, Psn, Reth};

impl Transport {
    /// A request seen before (IBA 9.7.5.1.4): nothing takes effect twice.
    pub(super) fn repeat(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        cx.counters.count(Counter::DuplicateRequest, 1);
        self.resp.queue = self.named_queue(rx, cx).unwrap_or_default();
        self.repeat_answer(rx, cx);
        self.resp.queue = None;
    }

    fn repeat_answer(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        let psn = rx.headers.bth.psn;
        let operation = rx.headers.bth.opcode.operation;
        if operation != Operation::ReadRequest {
            self.asked_again(psn, 1);
        }
        match operation {
            Operation::Send | Operation::Write => {
                // An acknowledge beyond a READ whose responses were lost would read as an implied
                // NAK.
                let ack = match self.resp.last_answered {
                    Some(answered) if answered.after(psn) > 0 => psn,
                    _ => {
                        // Then the peer has no reason to ask for the rest of what was put off.
                        self.resp.put_off = None;
                        self.resp.expected.minus(1)
                    }
                };
                self.owe_ack(ack);
            }
            Operation::ReadRequest => self.repeat_read(psn, rx.headers.reth, cx),
            Operation::AtomicWrite | Operation::Flush => {
                if sabotage::on(Sabotage::ReexecuteAtomics) {
                    let _ = self.place_or_flush(rx, cx);
                }
                if !self.crowded() {
                    self.owe_again(psn, Answer::Done, false);
                }
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                if self.crowded() {
                    return;
                }
                // The latest: PSNs come again.
                let saved = self.resp.saved.iter().rev().find(|(of, _)| *of == psn);
                let saved = saved.map(|(_, old)| *old);
                let old = if sabotage::on(Sabotage::ReexecuteAtomics) {
                    self.atomic(rx, cx).ok()
                } else {
                    saved
                };
                if let Some(old) = old {
                    self.owe_again(psn, Answer::Atomic(old.to_ne_bytes()), false);
                }
            }
            _ => {}
        }
    }

    /// Notes that the peer asks again for `packets` from `psn` on. Returns whether they had been
    /// put off.
    fn asked_again(&mut self, psn: Psn, packets: u32) -> bool {
        let (end, expected) = (psn.plus(packets), self.resp.expected);
        let is_of_it = self.resp.put_off.is_some_and(|from| end.after(from) > 0);
        if is_of_it {
            self.resp.put_off = (expected.after(end) > 0).then_some(end);
        }
        is_of_it
    }

    /// Whether the peer repeats itself faster than the answers leave.
    fn crowded(&self) -> bool {
        self.resp.responses.len() >= most_owed(self.attr.max_dest_rd_atomic.into())
    }

    /// Whether what is asked for again is still to be sent. An answer on its way out that has left
    /// it behind goes back to it: what follows is of no use without.
    fn comes_anyway(&mut self, psn: Psn, packets: u32, remote: Remote) -> bool {
        let end = psn.plus(packets);
        for read in self.resp.responses.reads_mut() {
            let skipped = psn.after(read.psn);
            if skipped < 0 || end.after(read.psn.plus(read.packets())) > 0 {
                continue;
            }
            let skipped = skipped as u32;
            if skipped < read.done && !read.is_at(skipped, remote) {
                continue;
            }
            read.done = read.done.min(skipped);
            return true;
        }
        false
    }

    /// A READ, or the rest of one, asked for again is executed again from the address it names.
    /// When that fails it is refused, but nothing more: a late duplicate must not break the
    /// connection after the program took the memory away.
    fn repeat_read(&mut self, psn: Psn, reth: Option<Reth>, cx: &mut Cx<'_>) {
        let Some(Reth { va, rkey, len }) = reth else { return };
        if len > MAX_MESSAGE || self.crowded() {
            return;
        }
        let packets = packets_of(len, self.resp.mtu);
        if packets >= 1 << 23 || psn.plus(packets).after(self.resp.expected) > 0 {
            return;
        }
        let remote = Remote { addr: va, rkey };
        if self.comes_anyway(psn, packets, remote)
            || !self.resp.responses.has_room_for_repeated_read()
        {
            return;
        }
        let put_off = self.asked_again(psn, packets);
        let (executor, seen) = (self.executor(cx.keys), cx.keys.changes());
        let (pd, granted) = (executor.pd, executor.read(remote, len));
        match granted {
            Ok(target) => {
                let (mtu, done) = (self.resp.mtu, 0);
                let read = ReadAnswer { psn, done, mtu, len, remote, target, pd, seen };
                self.owe_read_again(read, put_off);
            }
            Err(refusal) if put_off => self.refuse(refusal, psn, cx),
            Err(refusal) => self.owe_again(psn, Answer::refused_repetition(refusal), put_off),
        }
    }
}
