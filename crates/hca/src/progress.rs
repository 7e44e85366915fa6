//! Who moves packets when: the program's own threads while they poll, one sleeping thread otherwise (D1).
//!
//! [`Device::progress`] is one turn: take what arrived, let every QP that was touched answer, fire what is due. A turn ends
//! after less than a millisecond whatever peers ask: each visit to a QP does a part of its work at most ([`QUANTUM`]), the rest
//! comes due behind all others, and once the turn's time is over what is left waits for the next. The
//! progress thread sleeps in `poll(2)` on the link's sockets and on the news of the host's interfaces. When it wakes and the program polls at this very moment, it
//! leaves the sockets to the program for a while ([`Relief`]), the longer the more often it finds that; so a polling
//! program is not disturbed by a second thread, and one-sided traffic to a program that does not poll is served at once.

use crate::device::Device;
use crate::gsi::{self, ManagementInterface};
use crate::key_space::parts_reached;
use crate::multicast::MULTICAST_QPN;
use crate::qp::Qp;
use crate::subnet::{lid_of_address, lid_of_group};
use crate::turn::Turn;
use descriptors::Kept;
use link::{Batch, Datagram, FrameReceiver, Receiver, ip_of_gid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::AsFd;
use smallvec::SmallVec;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst, fence};
use std::sync::{Arc, Condvar, Mutex, PoisonError, TryLockError, Weak};
use std::time::{Duration, Instant};
use transport::{Budget, Routing, Rx, Share};
use transport::{Count, Counter};

/// A program whose last poll is not older polls right now.
const POLLS_NOW_NS: u64 = 3_000;
/// Trains taken from the sockets in one turn, so that a poll returns soon.
const TRAINS_A_TURN: usize = 4;
/// Parts of keys over other keys that one turn's packets may reach before the next turn takes up fewer of them.
const PARTS_A_TURN: u64 = 4096;
/// What one visit to a queue pair sends: some tenths of a millisecond.
pub(crate) const QUANTUM: Budget = Budget::of(Share::new(128, 256 << 10));
/// What a queue pair still sends in a turn whose time is over.
pub(crate) const LAST_WORDS: Budget = Budget::of(Share::new(2, 4 << 10));
/// Most datagrams of a train (UDP_MAX_SEGMENTS).
const PACKETS_A_TRAIN: usize = 128;
/// Requests that the packets of one turn may bring to their end: a peer may acknowledge thousands by a packet.
const ENDINGS_A_TURN: u32 = 1024;
/// Payload after which acknowledges go out within a turn: a sender with a small window waits for them.
const BYTES_AN_ANSWER: usize = 64 << 10;

/// Receive side of a device, used by one thread at a time.
pub(crate) struct Receiving {
    receiver: Receiver,
    /// Made with the first flow rule.
    frames: Option<FrameReceiver>,
    batch: Batch,
    /// QPs that packets of this turn touched.
    touched: Vec<Arc<Qp>>,
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
        touched.try_reserve_exact(TRAINS_A_TURN * PACKETS_A_TRAIN).map_err(no_memory)?;
        Ok(Receiving {
            receiver: Receiver::new()?,
            frames: None,
            batch: Batch::new()?,
            touched,
            seen: LinkCounts::default(),
            longest: Duration::ZERO,
            scattered: false,
        })
    }
}

impl Device {
    /// One turn of progress in the caller's thread, unless another thread is at it. Called by a program that polls.
    pub fn progress(&self) {
        if self.alive().is_err() {
            return;
        }
        let mut receiving = match self.receiving.try_lock() {
            Ok(receiving) => receiving,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return self.thread.program_polled(self.now_ns()),
        };
        // A turn may take long; all the while the program is here.
        self.thread.program_polled(u64::MAX);
        self.turn(&mut receiving);
        self.thread.program_polled(self.now_ns());
    }

    /// A turn that waits for its place; answers with the bytes of payload it took.
    fn progress_waiting(&self) -> usize {
        let mut receiving = self.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        self.turn(&mut receiving)
    }

    /// One turn, in whichever thread; answers with the bytes of payload it took.
    fn turn(&self, receiving: &mut Receiving) -> usize {
        catch_unwind(AssertUnwindSafe(|| self.take_turn(receiving))).unwrap_or_else(|panic| {
            self.fail(&*panic);
            0
        })
    }

    fn take_turn(&self, receiving: &mut Receiving) -> usize {
        let Receiving { receiver, frames, batch, touched, seen, longest, scattered } = receiving;
        let turn = Turn::begin();
        let (mut bytes, mut unanswered, mut endings) = (0, 0, ENDINGS_A_TURN);
        let parts = parts_reached();
        let trains = if *scattered { 1 } else { TRAINS_A_TURN };
        receiver.receive(self.endpoint(), trains, &mut |datagram| {
            self.dispatch(&datagram, turn.now, batch, touched, &mut endings);
            bytes += datagram.payload.len();
            unanswered += datagram.payload.len();
            if unanswered >= BYTES_AN_ANSWER {
                unanswered = 0;
                self.answer(touched, turn, batch);
            }
        });
        bytes += self.receive_frames(frames, batch, touched);
        *scattered = parts_reached() - parts >= PARTS_A_TURN;
        self.answer(touched, turn, batch);
        let fired = self.timers.due(turn.now);
        if fired {
            self.fire(turn, batch);
        }
        self.take_over_link_counts(seen);
        if bytes > 0 || fired {
            self.note_length(turn, longest);
        }
        bytes
    }

    /// Visits who is due, one at least in each turn.
    fn fire(&self, turn: Turn, batch: &mut Batch) {
        while let Some(qpn) = self.timers.pop_due(turn.now) {
            if let Some(qp) = self.qp(qpn) {
                qp.timer(self, turn.now, batch);
            } else if qpn == gsi::QPN {
                self.gsi.timer(turn.now);
            }
            if turn.is_over() {
                return;
            }
        }
    }

    fn note_length(&self, turn: Turn, longest: &mut Duration) {
        if let Some(worked) = turn.worked_longer(*longest) {
            *longest = worked;
            self.directory().show(Counter::LongestTurn, worked.as_micros() as u64);
        }
    }

    /// Lets every QP that packets touched acknowledge them and go on, in a later turn if this one's time is over.
    fn answer(&self, touched: &mut Vec<Arc<Qp>>, turn: Turn, batch: &mut Batch) {
        for qp in touched.drain(..) {
            if turn.is_over() {
                qp.put_off(self, turn.now, batch);
            } else {
                qp.end_of_batch(self, turn.now, batch);
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

    fn dispatch(
        &self,
        datagram: &Datagram<'_>,
        now: Instant,
        batch: &mut Batch,
        touched: &mut Vec<Arc<Qp>>,
        endings: &mut u32,
    ) {
        let counters = self.directory();
        counters.count(Counter::RcvdPackets, 1);
        counters.count(Counter::RcvdBytes, datagram.payload.len() as u64);
        let qpn = datagram.headers.bth.dest_qp;
        let interface = ManagementInterface::of(qpn);
        if interface.is_some_and(|interface| self.take_management(interface, datagram)) {
            return;
        }
        let management = interface.and_then(|interface| self.gsi.qp(interface));
        if qpn == gsi::QPN && management.is_none() {
            return self.gsi.receive(self, datagram, now);
        }
        if !self.takes(datagram.dst) {
            return counters.count(Counter::RxDropped, 1);
        }
        if qpn == MULTICAST_QPN {
            return self.dispatch_multicast(datagram, now, batch, touched, endings);
        }
        // A train is of one QP, so the last one touched is nearly always the one.
        let index = match touched.iter().rposition(|qp| qp.number() == qpn) {
            Some(index) => index,
            None => match management.or_else(|| self.qp(qpn)) {
                Some(qp) => {
                    touched.push(qp);
                    touched.len() - 1
                }
                None => return counters.count(Counter::RxDropped, 1),
            },
        };
        let routing = if self.subnet.is_some() { Routing::Lid } else { Routing::Ip };
        touched[index].receive(self, &rx_of(datagram, routing), now, batch, endings);
    }

    /// Each member of the group takes the packet, but for its sender if that one does not want it.
    fn dispatch_multicast(
        &self,
        datagram: &Datagram<'_>,
        now: Instant,
        batch: &mut Batch,
        touched: &mut Vec<Arc<Qp>>,
        endings: &mut u32,
    ) {
        let mut taken = false;
        for (group, routing) in self.groups_of(datagram) {
            for qp in self.groups.members(group) {
                taken = true;
                if qp.init().blocks_own_multicast && self.is_sender(&qp, datagram) {
                    continue;
                }
                qp.receive(self, &rx_of(datagram, routing), now, batch, endings);
                if touched.iter().all(|known| known.number() != qp.number()) {
                    touched.push(qp);
                }
            }
        }
        if !taken {
            self.directory().count(Counter::RxDropped, 1);
        }
    }

    /// The groups that a multicast packet is for. A LID may be several groups'.
    fn groups_of(&self, datagram: &Datagram<'_>) -> SmallVec<[(IpAddr, Routing); 1]> {
        let Some(subnet) = &self.subnet else {
            return SmallVec::from_elem((datagram.dst, Routing::Ip), 1);
        };
        let Some(mlid) = lid_of_group(datagram.dst) else { return SmallVec::new() };
        let source = lid_of_address(datagram.src);
        let Some(source) = source.and_then(|lid| subnet.memberships.gid_of(lid)) else {
            if let Some(sink) = subnet.sink.get() {
                sink.stranger();
            }
            return SmallVec::new();
        };
        let groups = subnet.memberships.groups_at(mlid).into_iter();
        groups.map(|mgid| (ip_of_gid(mgid), Routing::Gid { source, destination: mgid })).collect()
    }

    /// Whether `qp` sent a datagram: numbers are given anew on every host.
    fn is_sender(&self, qp: &Qp, datagram: &Datagram<'_>) -> bool {
        let sender = datagram.headers.deth.map(|deth| deth.src_qp);
        sender == Some(qp.number())
            && self.gids(1).is_ok_and(|gids| gids.iter().any(|gid| gid.ip == datagram.src))
    }
}

fn rx_of<'a>(datagram: &'a Datagram<'a>, routing: Routing) -> Rx<'a> {
    Rx {
        headers: &datagram.headers,
        payload: datagram.payload,
        src: datagram.src,
        dst: datagram.dst,
        traffic_class: datagram.traffic_class,
        hop_limit: datagram.hop_limit,
        vlan: datagram.vlan,
        routing,
    }
}

/// What the progress thread and its device share.
pub(crate) struct Thread {
    /// Written to wake the thread.
    kick: Kept,
    /// When the program last made progress, nanoseconds after the device's epoch; in the future while it is at it.
    polled_ns: AtomicU64,
    stop: AtomicBool,
    /// There is no thread any more.
    ended: AtomicBool,
    /// The thread stood when the latest pause was over.
    stood: AtomicBool,
    /// Whether the thread shall stand still (around a fork), and whether it does.
    pause: Mutex<Pause>,
    changed: Condvar,
    /// Until when the thread sleeps, nanoseconds after the device's epoch; an earlier deadline must kick it.
    wakes_at_ns: AtomicU64,
}

#[derive(Default)]
struct Pause {
    wanted: bool,
    standing: bool,
}

impl Thread {
    pub(crate) fn new() -> rustix::io::Result<Thread> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Thread {
            kick: Kept::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?),
            polled_ns: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            stood: AtomicBool::new(false),
            pause: Mutex::default(),
            changed: Condvar::new(),
            wakes_at_ns: AtomicU64::new(0),
        })
    }

    /// Notes that the program's own thread made progress at `now_ns`, or is at it (`u64::MAX`).
    pub(crate) fn program_polled(&self, now_ns: u64) {
        self.polled_ns.store(now_ns, Relaxed);
    }

    pub(crate) fn kick(&self) {
        // Full counter means a wake is pending already.
        let _ = rustix::io::write(&self.kick, &1u64.to_ne_bytes());
    }

    pub(crate) fn stop(&self) {
        self.stop.store(true, SeqCst);
        self.kick();
    }

    pub(crate) fn fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// Wakes the thread if it would sleep past `deadline_ns`.
    pub(crate) fn expect(&self, deadline_ns: u64) {
        // Pairs with the fence in `sleep`: either we see the announced sleep, or it sees our appointment.
        fence(SeqCst);
        if deadline_ns < self.wakes_at_ns.load(Relaxed) {
            self.kick();
        }
    }

    /// Stops the thread at a point where it holds no lock. Answers whether it stands, which it may not before `deadline`: it is
    /// in a long turn, or waits for a lock that the caller's thread has.
    pub(crate) fn pause(&self, deadline: Instant) -> bool {
        let mut pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        pause.wanted = true;
        self.kick();
        while !pause.standing && !self.ended.load(SeqCst) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(pause, left);
            pause = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        self.stood.store(pause.standing, SeqCst);
        pause.standing
    }

    /// Whether it stood when the latest pause was over. Takes no lock.
    pub(crate) fn stood(&self) -> bool {
        self.stood.load(SeqCst)
    }

    /// A thread is about to begin.
    pub(crate) fn begins(&self) {
        self.ended.store(false, SeqCst);
    }

    /// The thread has ended: nobody waits for it to stand.
    pub(crate) fn ends(&self) {
        let _pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        self.ended.store(true, SeqCst);
        self.changed.notify_all();
    }

    pub(crate) fn resume(&self) {
        let mut pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        *pause = Pause::default();
        self.changed.notify_all();
    }

    fn stand_if_asked(&self) {
        let mut pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        while pause.wanted {
            pause.standing = true;
            self.changed.notify_all();
            pause = self.changed.wait(pause).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// How long the thread leaves the sockets to a program that polls: doubled each time it is found polling.
struct Relief(Duration);

impl Relief {
    const FIRST: Duration = Duration::from_micros(10);
    const LONGEST: Duration = Duration::from_millis(1);

    /// What follows on a look at the program: `None` watches the sockets.
    fn next(&mut self, polls_now: bool) -> Option<Duration> {
        if !polls_now {
            self.0 = Relief::FIRST;
            return None;
        }
        let relief = self.0;
        self.0 = (relief * 2).min(Relief::LONGEST);
        Some(relief)
    }
}

/// Whether a stream runs to a program that does not poll. The thread then looks again for a moment before it sleeps: to
/// wake it costs the sender more than a train does, and a sleeping CPU more than that.
#[derive(Default)]
struct Stream {
    /// When the stream has dried up, nanoseconds after the device's epoch.
    ends_ns: u64,
}

impl Stream {
    /// Payload of one turn that makes a stream.
    const BYTES: usize = 32 << 10;
    /// How long after a turn with payload more of it is awaited.
    const LINGER_NS: u64 = 50_000;

    /// Takes note of a turn that ended at `now_ns` and brought `bytes` of payload; answers whether to look again.
    fn goes_on(&mut self, bytes: usize, now_ns: u64) -> bool {
        if bytes >= Stream::BYTES {
            self.ends_ns = now_ns + Stream::LINGER_NS;
        }
        now_ns < self.ends_ns
    }
}

/// Body of the progress thread; ends with the device. A panic, which is a bug of ours, ends the device.
pub(crate) fn run(device: &Weak<Device>) {
    let ended = catch_unwind(AssertUnwindSafe(|| go_on(device)));
    let Some(device) = device.upgrade() else { return };
    if let Err(panic) = ended {
        device.fail(&*panic);
    }
    device.thread.ends();
}

fn go_on(device: &Weak<Device>) {
    let mut growing = Relief(Relief::FIRST);
    let mut relief = None;
    let mut stream = Stream::default();
    let mut awake = false;
    while let Some(device) = device.upgrade() {
        let thread = &device.thread;
        thread.stand_if_asked();
        if thread.stop.load(SeqCst) || device.has_failed() {
            return;
        }
        if !awake {
            sleep(&device, relief);
        }
        device.apply_request();
        let polled_ns = thread.polled_ns.load(Relaxed);
        relief = growing.next(device.now_ns().saturating_sub(polled_ns) < POLLS_NOW_NS);
        awake = relief.is_none() && {
            let bytes = device.progress_waiting();
            let goes_on = stream.goes_on(bytes, device.now_ns());
            if goes_on && bytes == 0 {
                // Whoever else wants this CPU goes first.
                std::thread::yield_now();
            }
            goes_on
        };
    }
}

/// Sleeps until a packet arrives, a timer is due or a kick; with `relief` only until that is over or a kick: the program
/// that polls also serves the timers, and one that just stopped finds them at most that late.
fn sleep(device: &Device, relief: Option<Duration>) {
    let thread = &device.thread;
    let timeout = relief.or_else(|| until_timer(device));
    let timeout =
        timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
    let tap = device.raw.tap();
    let own = device.endpoint().own_addresses();
    let mut fds: smallvec::SmallVec<[PollFd<'_>; 4]> = smallvec::SmallVec::new();
    fds.push(PollFd::from_borrowed_fd(thread.fd(), PollFlags::IN));
    let watch = device.port.watch_fd().or_else(|| device.gateway.watch_fd());
    fds.extend(watch.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    if relief.is_none() {
        for fd in device.endpoint().receive_fds() {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        fds.extend(own.iter().map(|own| PollFd::from_borrowed_fd(own.fd(), PollFlags::IN)));
        if let Some(tap) = &tap {
            fds.push(PollFd::from_borrowed_fd(tap.fd(), PollFlags::IN));
        }
    }
    // Interrupted or not, the caller looks at everything else afterwards.
    let _ = poll(&mut fds, timeout.as_ref());
    if !fds[0].revents().is_empty() {
        let _ = rustix::io::read(&thread.kick, &mut [0u8; 8]);
    }
    if watch.is_some() && !fds[1].revents().is_empty() {
        drop(device.port_now());
        device.follow_host();
    }
    thread.wakes_at_ns.store(0, Relaxed);
}

/// Announces a sleep until the next timer, and says how long that is.
fn until_timer(device: &Device) -> Option<Duration> {
    let first = device.timers.until_next(Instant::now());
    let wakes_at = first.map_or(u64::MAX, |t| device.now_ns() + t.as_nanos() as u64);
    device.thread.wakes_at_ns.store(wakes_at, Relaxed);
    fence(SeqCst);
    // A deadline set between reading the heap and announcing the sleep would be missed without a second look.
    let second = device.timers.until_next(Instant::now());
    first.into_iter().chain(second).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relief_grows_while_the_program_polls_and_ends_when_it_stops() {
        let mut relief = Relief(Relief::FIRST);
        assert_eq!(relief.next(true), Some(Relief::FIRST));
        assert_eq!(relief.next(true), Some(Relief::FIRST * 2));
        for _ in 0..10 {
            relief.next(true);
        }
        assert_eq!(relief.next(true), Some(Relief::LONGEST));
        assert_eq!(relief.next(false), None);
        assert_eq!(relief.next(true), Some(Relief::FIRST));
    }
}
