//! Page faults: memory behind a valid key is not there now, and whoever keeps it will say when it is.
//!
//! On-demand memory of this process is brought in within the access ([`umem::Umem::read`]). Memory that a front end keeps
//! elsewhere answers [`AccessError::NotPresent`] instead, and the side of the queue pair that met it waits: requests stay in
//! their queue, a peer's request or the rest of a READ is answered "receiver not ready". Nothing waits inside an
//! access, and whatever was begun is begun again, so a packet may be placed twice but nothing takes effect twice.
//! [`Transport::resume`] goes on, or fails what waited.
//!
//! A buffer that is being moved ([`AccessError::Moving`]) is such memory too, but nobody says when it is there again: the access
//! looks again by itself.
//!
//! A list of keys may change while an access is on its way through it: whoever keeps the memory has given up a key below, and has
//! not listed another in its place yet. What he refuses then ([`Verdict::RefusedBelow`]) is looked up again from the key that the
//! request names, a little later each time, before it fails.

use super::Transport;
use super::executor::{Landing, Refusal};
use super::responder::{Incoming, abandon};
use super::response::{Answer, Response};
use super::send::{Phase, Wqe, vendor};
use crate::keys::KeyError;
use crate::values::{QpState, Remote, WcStatus};
use crate::{Counter, Cx, Rx};
use std::time::{Duration, Instant};
use umem::AccessError;
use wire::{NakCode, Operation, Psn, Syndrome};

/// How often in a row memory below a list of keys may be refused. Each time the guest, or whoever keeps it, has run for a while:
/// on a busy host that says more than any time.
const REFUSALS: u32 = 11;
/// How long the first refusal is waited after; the next ones twice as long each, two seconds in all.
const FIRST_LOOK: Duration = Duration::from_millis(1);
/// How long a move is waited for at a time. Who may move a buffer for how long its exporter knows, and fails accesses then.
const NEXT_LOOK: Duration = Duration::from_millis(1);

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
    /// A peer's operation on so many bytes.
    Remote(Remote, u32),
}

/// A page fault that waits to be served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageFault {
    /// Its name in [`Transport::resume`]; a queue pair never uses one again.
    pub id: u64,
    /// Who waits.
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

/// What whoever was told of a page fault says of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The memory is there, or the access should look again.
    Served,
    /// It never will be there.
    Refused,
    /// Not under the key that the fault named. It is [`Missing::below`] another, where the access looks again a little later.
    RefusedBelow,
}

/// Of [`PageFault`], what the side that meets it knows.
pub(super) struct Met {
    pub(super) work: FaultedWork,
    pub(super) write: bool,
    pub(super) done: u32,
    pub(super) packet: usize,
    pub(super) ahead: u64,
    /// The send request's first PSN, or that of the answer.
    pub(super) first: Psn,
    /// The peer may have had the answer long ago.
    pub(super) repeated: bool,
}

impl Met {
    /// By the next packet of a message that fills a receive request.
    fn landing(landing: &Landing, packet: usize) -> Met {
        let ahead = landing.room().saturating_sub(packet as u64);
        let (work, done) = (FaultedWork::Receive(landing.wr_id()), landing.filled() as u32);
        Met { work, write: true, done, packet, ahead, first: Psn::default(), repeated: false }
    }

    /// By a datagram.
    pub(super) fn datagram(landing: &Landing, parts: &[&[u8]]) -> Met {
        let work = FaultedWork::Receive(landing.wr_id());
        let packet = parts.iter().map(|part| part.len()).sum();
        Met { work, write: true, done: 0, packet, ahead: 0, first: Psn::default(), repeated: false }
    }

    /// By a send request: its own payload, or an answer that lands (`write`), after `done` bytes of it.
    fn sending(wqe: &Wqe, done: u32, packet: usize, write: bool) -> Met {
        let work = FaultedWork::Send(wqe.wr.wr_id);
        let ahead = u64::from(wqe.length.saturating_sub(done)).saturating_sub(packet as u64);
        Met { work, write, done, packet, ahead, first: wqe.first, repeated: false }
    }

    /// By a peer's operation on `len` bytes.
    fn remote(remote: Remote, len: u32, done: u32, packet: usize) -> Met {
        let work = FaultedWork::Remote(remote, len);
        let ahead = u64::from(len.saturating_sub(done)).saturating_sub(packet as u64);
        Met { work, write: true, done, packet, ahead, first: Psn::default(), repeated: false }
    }
}

/// A fault that nobody has served yet.
struct Open {
    id: u64,
    /// It was refused, or waits for a move, and is over then.
    until: Option<Instant>,
    error: AccessError,
    work: FaultedWork,
    first: Psn,
    repeated: bool,
}

/// Refusals in a row, and of which key's memory.
#[derive(Clone, Copy, Default)]
struct Refusals {
    key: u32,
    count: u32,
}

/// The faults of one queue pair.
#[derive(Default)]
pub(super) struct Faults {
    ids: u64,
    open: [Option<Open>; 4],
    refusals: [Refusals; 4],
}

impl Faults {
    pub(super) fn is_open(&self, side: FaultSide) -> bool {
        self.open[side as usize].is_some()
    }

    /// Nobody waits any more; what was open is never served.
    pub(super) fn clear(&mut self) {
        self.open = Default::default();
        self.refusals = Default::default();
    }

    /// When what was refused is looked up again.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.open.iter().flatten().filter_map(|open| open.until).min()
    }

    /// Ends the waits that are over.
    fn look_again(&mut self, now: Instant) {
        for open in &mut self.open {
            open.take_if(|open| open.until.is_some_and(|until| until <= now));
        }
    }

    /// Fault `id` was refused below a list: it waits a little longer, unless that happened too often in a row.
    fn refused_below(&mut self, id: u64, now: Instant) -> bool {
        let faults = self.open.iter_mut().zip(&mut self.refusals);
        let mut open = faults.filter_map(|(open, refusals)| Some((open.as_mut()?, refusals)));
        let Some((open, refusals)) = open.find(|(open, _)| open.id == id) else { return false };
        let AccessError::NotPresent { key, .. } = open.error else { return false };
        if refusals.key != key {
            *refusals = Refusals { key, count: 0 };
        }
        let again = refusals.count < REFUSALS;
        if again {
            open.until = Some(now + FIRST_LOOK * (1 << refusals.count));
            refusals.count += 1;
        }
        again
    }

    fn close(&mut self, id: u64) -> Option<(FaultSide, Open)> {
        use FaultSide::{Answers, Landing, Requests, Service};
        [Requests, Landing, Service, Answers].into_iter().find_map(|side| {
            let open = self.open[side as usize].take_if(|open| open.id == id)?;
            self.refusals[side as usize] = Refusals::default();
            Some((side, open))
        })
    }
}

impl Transport {
    /// Whether `side` waits for `error` to be mended: it is a page fault, and somebody took it.
    pub(super) fn waits(
        &mut self,
        side: FaultSide,
        error: AccessError,
        met: Met,
        cx: &mut Cx<'_>,
    ) -> bool {
        let (missing, until) = match error {
            AccessError::NotPresent { key, len, addr, below } => {
                (Some(Missing { key, addr, len, below }), None)
            }
            AccessError::Moving => (None, Some(cx.now + NEXT_LOOK)),
            _ => return false,
        };
        if self.faults.is_open(side) {
            return true;
        }
        self.faults.ids += 1;
        let id = self.faults.ids;
        let Met { work, write, done, packet, ahead, first, repeated } = met;
        // Before anybody is told: the answer may come at once.
        self.faults.open[side as usize] = Some(Open { id, until, error, work, first, repeated });
        let Some(missing) = missing else { return true };
        let taken = cx.sink.page_fault(PageFault {
            id,
            side,
            missing,
            write,
            work,
            done,
            packet: u32::try_from(packet).unwrap_or(u32::MAX),
            ahead: u32::try_from(ahead).unwrap_or(u32::MAX),
        });
        if !taken {
            self.faults.open[side as usize] = None;
        }
        taken
    }

    /// Whether the send request at `index`, whose packet at `packet` could not be read, waits.
    pub(super) fn waits_to_send(
        &mut self,
        (index, packet): (usize, u32),
        error: AccessError,
        cx: &mut Cx<'_>,
    ) -> bool {
        let Some(wqe) = self.req.queue.get(index) else { return false };
        let len = wqe.payload_at(packet, self.mtu);
        let met = Met::sending(wqe, packet.saturating_mul(self.mtu), len, false);
        self.waits(FaultSide::Requests, error, met, cx)
    }

    /// Whether the oldest request waits for memory that `len` bytes of an answer go to. They are asked for again then.
    pub(super) fn waits_to_land(
        &mut self,
        packet: u32,
        len: usize,
        error: AccessError,
        cx: &mut Cx<'_>,
    ) -> bool {
        let Some(wqe) = self.req.queue.front() else { return false };
        let met = Met::sending(wqe, packet.saturating_mul(self.mtu), len, true);
        let waits = self.waits(FaultSide::Landing, error, met, cx);
        if waits {
            self.req.go_back();
        }
        waits
    }

    /// A peer's request met a fault and had no effect: the peer comes again, unless nobody takes the fault.
    pub(super) fn request_faulted(&mut self, error: AccessError, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        let (headers, packet) = (rx.headers, rx.payload.len());
        let met = match (&self.resp.message, self.inbox.held()) {
            (Some(Incoming::Send(landing)), _) => Met::landing(landing, packet),
            (Some(Incoming::Write(write)), _) => {
                Met::remote(write.remote, write.len, write.done, packet)
            }
            (None, Some(landing)) if headers.bth.opcode.operation == Operation::Send => {
                Met::landing(landing, packet)
            }
            (None, _) => {
                let written = headers.reth.map(|reth| (reth.va, reth.rkey, reth.len));
                let changed = headers.atomic.map(|atomic| (atomic.va, atomic.rkey, 8));
                let packet = changed.map_or(packet, |(_, _, len)| len as usize);
                let (addr, rkey, len) = written.or(changed).unwrap_or_default();
                Met::remote(Remote { addr, rkey }, len, 0, packet)
            }
        };
        let receives = matches!(met.work, FaultedWork::Receive(_));
        let psn = headers.bth.psn;
        if self.waits(FaultSide::Service, error, met, cx) {
            return self.refuse(Refusal::NotReady, psn, cx);
        }
        self.refuse_request(receives, psn, cx);
    }

    /// A message of an unreliable connection met a fault: it is lost, and the next one may find the memory there.
    pub(super) fn message_faulted(&mut self, error: AccessError, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        let packet = rx.payload.len();
        let met = match &self.resp.message {
            Some(Incoming::Send(landing)) => Met::landing(landing, packet),
            Some(Incoming::Write(write)) => {
                Met::remote(write.remote, write.len, write.done, packet)
            }
            None => return,
        };
        self.waits(FaultSide::Service, error, met, cx);
        cx.counters.count(Counter::RxDropped, 1);
        abandon(&mut self.resp.message, &mut self.inbox);
    }

    fn refuse_request(&mut self, receives: bool, psn: Psn, cx: &mut Cx<'_>) {
        let refusal = if receives {
            if self.resp.message.is_none() {
                self.resp.message = self.inbox.take_held().map(Incoming::Send);
            }
            Refusal::ReceiveProtection
        } else {
            Refusal::RemoteAccess(KeyError::Unmapped)
        };
        self.refuse(refusal, psn, cx);
    }

    /// A fault was served, or cannot be: what met it goes on, or fails. A name that is not open means nothing.
    pub fn resume(&mut self, id: u64, verdict: Verdict, cx: &mut Cx<'_>) {
        self.now = Some(cx.now);
        if verdict == Verdict::RefusedBelow && self.faults.refused_below(id, cx.now) {
            return;
        }
        if let Some((side, open)) = self.faults.close(id)
            && verdict != Verdict::Served
        {
            match side {
                FaultSide::Requests => self.fail_faulted(&open, cx),
                FaultSide::Landing => {
                    self.fail_oldest(WcStatus::LocProtErr, vendor::memory(open.error), cx);
                }
                FaultSide::Service => self.refuse_faulted(&open, cx),
                FaultSide::Answers => self.refuse_answer(&open, cx),
            }
        }
        self.transmit(cx);
    }

    /// What was refused a while ago goes on, and meets another fault if nothing has changed.
    pub(super) fn look_again(&mut self, now: Instant) {
        self.faults.look_again(now);
    }

    /// The send request fails once it is the oldest.
    fn fail_faulted(&mut self, open: &Open, cx: &mut Cx<'_>) {
        let mut begun = self.req.queue.iter_mut().filter(|wqe| wqe.phase == Phase::Started);
        if let Some(wqe) = begun.find(|wqe| wqe.first == open.first) {
            wqe.phase = Phase::Failed(WcStatus::LocProtErr, vendor::memory(open.error));
        }
        self.fail_if_oldest(cx);
    }

    /// The peer is told at once: it waits to come again. An unreliable one has lost its message and hears nothing.
    fn refuse_faulted(&mut self, open: &Open, cx: &mut Cx<'_>) {
        if !self.kind.is_reliable() {
            return;
        }
        let receives = matches!(open.work, FaultedWork::Receive(_));
        self.refuse_request(receives, self.resp.expected, cx);
    }

    /// The peer learns why no more of its READ comes. For one that has it this is stale, and no reason to end the connection.
    fn refuse_answer(&mut self, open: &Open, cx: &mut Cx<'_>) {
        if open.repeated {
            let nak = Syndrome::Nak(NakCode::RemoteAccess);
            self.owe(open.first, Answer::Nak(nak), false);
            return;
        }
        self.resp.responses.clear();
        self.refuse(Refusal::RemoteAccess(KeyError::Unmapped), open.first, cx);
    }

    /// Whether the rest of the READ at hand waits for its memory: then the peer asks for it again later, and for whatever it
    /// asked after it.
    pub(super) fn waits_to_answer(
        &mut self,
        len: usize,
        error: AccessError,
        cx: &mut Cx<'_>,
    ) -> bool {
        let Some(Response { answer: Answer::Read(read), fresh, .. }) = self.resp.responses.front()
        else {
            return false;
        };
        let repeated = !fresh;
        let psn = read.psn.plus(read.done);
        let done = read.done.saturating_mul(self.mtu);
        let met = Met {
            work: FaultedWork::Remote(read.remote, read.len),
            write: false,
            done,
            packet: len,
            ahead: u64::from(read.len.saturating_sub(done)).saturating_sub(len as u64),
            first: psn,
            repeated,
        };
        // Nobody is left to say it to, after an error.
        if self.state == QpState::Err || !self.waits(FaultSide::Answers, error, met, cx) {
            return false;
        }
        if repeated {
            // The peer may have had it long ago, and wait for what stands behind it.
            self.resp.responses.pop_front();
        } else {
            self.resp.responses.clear();
            self.resp.put_off = Some(psn);
        }
        let later = Answer::Nak(Syndrome::RnrNak(self.attr.min_rnr_timer));
        let msn = self.resp.msn;
        self.resp.responses.push_front(Response { psn, msn, answer: later, fresh: false });
        true
    }
}
