//! Who moves packets when: the program's own threads while they poll, one sleeping thread otherwise
//! (D1).
//!
//! [`Device::progress`] is one turn: take what arrived, let every QP that was touched answer, fire
//! what is due. A turn ends after less than a millisecond whatever peers ask: each visit to a QP
//! does a part of its work at most (`QUANTUM`), the rest comes due behind all others, and once
//! the turn's time is over what is left waits for the next. Whose thread takes the turn is for
//! [`super::thread`] to decide.

use crate::adapter::management::GSI_QPN;
use crate::adapter::rings::{Incoming, Owed, PACKETS_A_TURN, Rings};
use crate::device::Device;
use crate::device::looks::Looks;
use crate::device::short::{Taken, take_short};
use crate::device::turn::{Done, Turn};
use crate::memory::key_space::parts_reached;
use crate::objects::qp::{BYTES_AN_ANSWER, Qp, Visit};
use crate::sabotage;
use engine_thread::{Uncancelled, lock, try_lock};
use link::{Batch, Datagram, FrameReceiver, Receiver};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};
use transport::{Count, Counter};

/// Trains taken from the sockets in one turn, so that a poll returns soon.
const TRAINS_A_TURN: usize = 4;
/// Parts of keys over other keys that one turn's packets may reach before the next turn takes up
/// fewer of them.
const PARTS_A_TURN: u64 = 4096;
/// Most datagrams of a train (UDP_MAX_SEGMENTS).
const PACKETS_A_TRAIN: usize = 128;
/// Requests that the packets of one turn may bring to their end: a peer may acknowledge thousands
/// by a packet.
const ENDINGS_A_TURN: u32 = 1024;
/// Payload of a turn that has time left whatever its clock says.
const SHORT_BYTES: usize = 4 << 10;

/// Packets of a turn that is brief if their payload is short, too.
const BRIEF_PACKETS: usize = 2;

/// Receive side of a device, used by one thread at a time.
pub(crate) struct Receiving {
    receiver: Receiver,
    looks: Looks,
    /// Made with the first flow rule.
    frames: Option<FrameReceiver>,
    batch: Batch,
    /// QPs that packets of this turn touched.
    touched: Vec<Arc<Qp>>,
    /// The latest that took a short message.
    latest: Option<Arc<Qp>>,
    /// One whose acknowledge may wait for the program's answer.
    awaits: Option<Arc<Qp>>,
    seen: LinkCounts,
    /// The longest turn so far, as the directory shows it.
    longest: Duration,
    /// What came in the latest turn went to very many places, and so may what comes next.
    scattered: bool,
}

/// Counts of the link that the directory already has.
#[derive(Clone, Copy, Default)]
struct LinkCounts {
    icrc: u64,
    malformed: u64,
    refused: u64,
}

impl Receiving {
    /// # Errors
    /// ENOMEM.
    pub(crate) fn new() -> std::io::Result<Receiving> {
        let no_memory = |_| rustix::io::Errno::NOMEM;
        let mut touched = Vec::new();
        touched
            .try_reserve_exact(TRAINS_A_TURN * PACKETS_A_TRAIN + PACKETS_A_TURN)
            .map_err(no_memory)?;
        Ok(Receiving {
            receiver: Receiver::new()?,
            looks: Looks::new(),
            frames: None,
            batch: Batch::new()?,
            touched,
            latest: None,
            awaits: None,
            seen: LinkCounts::default(),
            longest: Duration::ZERO,
            scattered: false,
        })
    }
}

impl Receiving {
    /// Keeps the queue pair no longer that took a short message last.
    pub(super) fn forget_latest(&mut self) {
        self.latest = None;
    }

    /// Whether an acknowledge may wait for the program's answer.
    pub(super) fn has_waiting(&self) -> bool {
        self.awaits.as_ref().is_some_and(|qp| qp.may_have_waiting())
    }
}

impl Device {
    /// One turn of progress in the caller's thread, unless another thread is at it. Called by a
    /// program that polls.
    pub fn progress(&self) {
        if self.alive().is_err() {
            return;
        }
        match try_lock(&self.receiving) {
            Some(receiving) => self.polls(receiving, None),
            None => {
                self.adapter.thread.program_polls();
                self.adapter.thread.program_polled(self.now_ns());
            }
        }
    }

    /// The same for a thread that has slept; `false` if another is at it. The wake-up of the peer
    /// whose message it takes may wait for the program's answer.
    pub(super) fn progress_after_sleep(&self) -> bool {
        let receiving = try_lock(&self.receiving).filter(|_| self.alive().is_ok());
        let Some(mut receiving) = receiving else { return false };
        receiving.looks.forget_the_time();
        let owed = self.adapter.rings().map(|rings| &rings.owed);
        self.polls(receiving, owed);
        // It sleeps, and does not look for what is owed.
        if self.adapter.thread.stand_in.is_watched() {
            self.pay();
        }
        true
    }

    /// A turn of a program that polls; one with `owed` puts wake-ups off.
    fn polls(&self, mut receiving: MutexGuard<'_, Receiving>, owed: Option<&Owed>) {
        self.stop_waiting(&mut receiving);
        self.pay();
        let rings = self.adapter.rings().map(Rings::from);
        let by_rings = rings.as_ref().is_some_and(|rings| !rings.is_empty());
        let looks = &mut receiving.looks;
        let mut sockets = match by_rings {
            true => looks.are_due(),
            false => {
                looks.looks_always();
                true
            }
        };
        if !sockets && rings.as_ref().is_some_and(|rings| !rings.has_more()) {
            if looks.read_the_clock() {
                let now = Instant::now();
                looks.note_reading((now, self.adapter.ns_of(now)));
                self.adapter.thread.program_polls();
                self.adapter.thread.program_polled(looks.now_ns());
                sockets = looks.were_long_ago(looks.now_ns());
            }
            if !sockets && !self.adapter.timers.are_due(looks.now_ns()) {
                return;
            }
        }
        // Another turn may take long; all the while the program is here.
        let is_brief = !sockets && looks.spare_the_clock();
        if !is_brief {
            self.adapter.thread.program_polls();
        }
        owed.inspect(|owed| owed.begin());
        let done = self.turn(&mut receiving, rings, sockets, true);
        owed.inspect(|owed| owed.end());
        let gives_way = self.gives_way(&mut receiving.looks);
        receiving.looks.note(done.ended_ns);
        if is_brief {
            self.adapter.thread.program_polled_briefly();
        }
        drop(receiving);
        if !is_brief || self.adapter.thread.program_is_at_it() {
            self.adapter.thread.program_polled(done.ended_ns);
        }
        if gives_way {
            std::thread::yield_now();
            self.adapter.thread.program_polled(self.now_ns());
        }
    }

    /// Whether a program that polls had better let others run: whoever it waits for may wait for
    /// this CPU. Who fills a ring or empties it is woken by nothing; and of hundreds of programs
    /// that poll on a few CPUs each would have its turn too late for the others' timers.
    fn gives_way(&self, looks: &mut Looks) -> bool {
        let waited_long = looks.let_others_run();
        let gives_way = self.adapter.rings().is_some_and(Rings::was_full) || waited_long;
        if gives_way {
            looks.others_ran();
        }
        gives_way
    }

    /// A turn that waits for its place.
    pub(super) fn progress_waiting(&self) -> Done {
        let mut receiving = lock(&self.receiving);
        receiving.looks.forget_the_time();
        self.stop_waiting(&mut receiving);
        self.turn(&mut receiving, self.adapter.rings().map(Rings::from), true, false)
    }

    /// No acknowledge waits for the program's answer any longer.
    #[inline]
    pub(super) fn stop_waiting(&self, receiving: &mut Receiving) {
        if receiving.awaits.is_some() {
            self.answer_late(receiving);
        }
    }

    #[cold]
    fn answer_late(&self, receiving: &mut Receiving) {
        let Some(qp) = receiving.awaits.take() else { return };
        let leave = AssertUnwindSafe(|| qp.stop_waiting(&self.adapter));
        catch_unwind(leave).unwrap_or_else(|panic| self.fail(&*panic));
    }

    /// The progress thread is awake after it slept, and need not be woken; whoever has taken its
    /// place meanwhile looks again, and says once more that it sleeps.
    pub(super) fn is_awake(&self) {
        let stand_in = &self.adapter.thread.stand_in;
        stand_in.set_watched(false);
        if !stand_in.is_there() {
            self.directory().is_awake();
            stand_in.event();
        }
    }

    /// Whether something waits in the rings that the progress thread leaves to who stands in, and
    /// nobody does.
    pub(super) fn rings_were_left(&self) -> bool {
        let has_more = |rings: &Rings| rings.has_more() == Some(true);
        !self.adapter.thread.stand_in.is_there() && self.adapter.rings().is_some_and(has_more)
    }

    /// The program is about to wait for a completion: no acknowledge waits for its answer, and the
    /// progress thread is woken for what comes.
    pub(super) fn program_sleeps(&self) {
        let stand_in = &self.adapter.thread.stand_in;
        stand_in.arms();
        // Who stands in says so itself.
        if self.adapter.rings().is_some() && !stand_in.is_left() {
            self.directory().sleeps();
        }
        if let Some(mut receiving) = try_lock(&self.receiving) {
            self.stop_waiting(&mut receiving);
        }
    }

    /// The engine thread is about to sleep, and has to be woken for what comes by rings from now
    /// on. Answers whether it may: what waits there already is for it to take, and a ring that had
    /// to wait for another.
    pub(super) fn rings_may_wait(&self) -> bool {
        self.directory().sleeps();
        let announced = self.directory().announced();
        let is_idle = |rings: &Rings| rings.has_seen(announced) && !rings.from().has_more();
        self.adapter.rings().is_none_or(is_idle)
    }

    /// One turn, in a thread of the program's that polls, or in another.
    fn turn(
        &self,
        receiving: &mut Receiving,
        mut rings: Option<MutexGuard<'_, Incoming>>,
        sockets: bool,
        polled: bool,
    ) -> Done {
        let turn = || {
            let Receiving { looks, latest, .. } = &mut *receiving;
            let rest = |receiving: &mut _, rings| {
                if !sockets {
                    // It was to be brief, and is not.
                    self.adapter.thread.program_polls();
                }
                self.take_turn(receiving, rings, (sockets, polled))
            };
            let waits = rings.as_mut().filter(|rings| rings.has_more());
            let short =
                waits.map(|rings| take_short(&self.adapter, &self.qps, rings, looks, latest));
            match short {
                Some(Taken { done, is_all: true }) if !sockets => done,
                Some(Taken { done: Done { bytes, by_ring, .. }, .. }) => {
                    let rest = rest(receiving, rings);
                    Done { bytes: rest.bytes + bytes, by_ring: rest.by_ring + by_ring, ..rest }
                }
                None => rest(receiving, rings),
            }
        };
        catch_unwind(AssertUnwindSafe(turn)).unwrap_or_else(|panic| {
            self.fail(&*panic);
            Done { bytes: 0, by_ring: 0, ended_ns: self.now_ns() }
        })
    }

    fn take_turn(
        &self,
        receiving: &mut Receiving,
        rings: Option<MutexGuard<'_, Incoming>>,
        (sockets, polled): (bool, bool),
    ) -> Done {
        let _whole = Uncancelled::begin();
        let Receiving { receiver, looks, frames, batch, touched, awaits, .. } = receiving;
        let Receiving { seen, longest, scattered, .. } = receiving;
        let turn = Turn::begin(polled);
        let (taken, mut by_ring) = (Cell::new(0), 0);
        let (mut unanswered, mut endings) = (0, ENDINGS_A_TURN);
        let parts = parts_reached();
        // The clock costs a good part of what a short packet does.
        let is_short = |answers: u32, bytes: usize| {
            answers == 0 && bytes <= SHORT_BYTES && parts_reached() == parts
        };
        let mut answers = 0;
        let mut answer = |visit: Visit, touched: &mut Vec<_>, batch: &mut _| {
            taken.set(taken.get() + visit.bytes);
            unanswered += if visit.answered { 0 } else { visit.bytes };
            if unanswered >= BYTES_AN_ANSWER {
                unanswered = 0;
                self.answer((touched, awaits), turn, false, batch);
            }
        };
        if let Some(mut rings) = rings {
            by_ring = rings.receive(&mut |row| {
                if answers > 0 && turn.is_over() {
                    return false;
                }
                let has_time = |more| {
                    let is_in_time = is_short(answers, taken.get() + more) || !turn.is_over();
                    is_in_time && !sabotage::turns_are_spoiled()
                };
                let visit = self.visit(row, (turn.now, &has_time), batch, touched, &mut endings);
                answers += u32::from(visit.answered);
                answer(visit, touched, batch);
                true
            });
            if by_ring > 0 {
                looks.came_by_ring();
            }
        }
        let now_ns = self.adapter.ns_of(turn.now);
        let sockets = sockets || looks.were_long_ago(now_ns);
        let mut came = 0;
        if sockets {
            let trains = if *scattered { 1 } else { TRAINS_A_TURN };
            let mut each = |datagram: Datagram<'_>| {
                self.dispatch(&datagram, turn.now, batch, touched, &mut endings);
                let bytes = datagram.payload.len();
                answer(Visit { bytes, ..Visit::default() }, touched, batch);
            };
            came = match turn.polled && looks.are_frequent() {
                true => receiver.glance(self.endpoint(), trains, &mut each),
                false => receiver.receive(self.endpoint(), trains, &mut each),
            };
        }
        let in_frames = self.frames().receive(frames, batch, touched);
        let bytes = taken.get() + in_frames;
        match came > 0 || in_frames > 0 {
            true => looks.came_from_wire(now_ns),
            false if sockets => looks.looked_in_vain(now_ns),
            false => {}
        }
        sabotage::turn_took(bytes);
        *scattered = parts_reached() - parts >= PARTS_A_TURN;
        self.answer((touched, awaits), turn, !sockets && is_short(answers, bytes), batch);
        let fired = self.adapter.timers.are_due(now_ns);
        if fired {
            self.fire(turn, batch);
        }
        self.take_over_link_counts(seen);
        let is_brief = !sockets && !fired && by_ring <= BRIEF_PACKETS && is_short(0, bytes);
        if is_brief {
            return Done { bytes, by_ring, ended_ns: now_ns };
        }
        let ended = Instant::now();
        if bytes > 0 || fired {
            self.note_length(turn, ended, longest);
        }
        Done { bytes, by_ring, ended_ns: self.adapter.ns_of(ended) }
    }

    /// Visits who is due, one at least in each turn.
    fn fire(&self, turn: Turn, batch: &mut Batch) {
        while let Some(qpn) = self.adapter.timers.pop_due(turn.now) {
            if let Some(qp) = self.qps.find(qpn) {
                qp.timer(&self.adapter, turn.now, batch);
            } else if qpn == GSI_QPN {
                self.gsi.timer(turn.now);
            }
            if turn.is_over() {
                return;
            }
        }
    }

    fn note_length(&self, turn: Turn, ended: Instant, longest: &mut Duration) {
        if let Some(worked) = turn.worked_longer(ended, *longest) {
            *longest = worked;
            self.directory().show(Counter::LongestTurn, worked.as_micros() as u64);
        }
    }

    /// Lets every QP that packets touched acknowledge them and go on, in a later turn if this one's
    /// time is over; the acknowledge of one may wait for the program's answer. The clock costs a
    /// good part of what a short packet does.
    fn answer(
        &self,
        (touched, awaits): (&mut Vec<Arc<Qp>>, &mut Option<Arc<Qp>>),
        turn: Turn,
        is_short: bool,
        batch: &mut Batch,
    ) {
        for (index, qp) in touched.drain(..).enumerate() {
            let has_time = is_short && index == 0;
            if !has_time && turn.is_over() {
                qp.put_off(&self.adapter, turn.now, batch);
                continue;
            }
            // Where several were touched, the program does not answer one message.
            let may_wait = awaits.is_none();
            if qp.end_of_batch(&self.adapter, (turn.now, may_wait), batch) {
                *awaits = Some(qp);
            }
        }
    }

    /// The link counts for itself what no QP ever sees; the directory shows it to others.
    fn take_over_link_counts(&self, seen: &mut LinkCounts) {
        let stats = self.endpoint().stats();
        let now = LinkCounts {
            icrc: stats.rx_icrc_errors.load(Relaxed),
            malformed: stats.rx_malformed.load(Relaxed),
            refused: [
                &stats.send_too_big,
                &stats.send_unreachable,
                &stats.send_no_buffers,
                &stats.send_denied,
                &stats.send_other,
            ]
            .map(|counter| counter.load(Relaxed))
            .iter()
            .sum(),
        };
        let before = std::mem::replace(seen, now);
        for (what, now, before) in [
            (Counter::RxIcrcEncapsulated, now.icrc, before.icrc),
            (Counter::RxMalformed, now.malformed, before.malformed),
            (Counter::TxRefused, now.refused, before.refused),
        ] {
            if now != before {
                self.directory().count(what, now.wrapping_sub(before));
            }
        }
    }
}
