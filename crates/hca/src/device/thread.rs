//! The progress thread.
//!
//! It sleeps in `poll(2)` on the link's sockets and on the news of the host's interfaces. When it
//! wakes and the program has polled just now, it leaves the sockets to the program for a while
//! (`Relief`), the longer the more often it finds that; so a polling program is not disturbed by a
//! second thread, and one-sided traffic to a program that does not poll is served at once. A
//! program that polls for a moment only, as one does that then spins on memory until the peer's
//! next write, is found out by what it left lying: for some time it gets no relief.
//!
//! A program that waits for events in a call of ours takes this thread's place at the rings
//! meanwhile (`stand_in`). One that waits by the descriptor of an event says so when it arms a
//! completion queue, and is not taken for one that polls.

use super::Device;
use super::turn::Done;
use crate::adapter::Adapter;
use crate::adapter::thread::StandIn;
use crate::fabric::Fabric;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::time::{Duration, Instant};

/// A program whose last poll is not older polls right now.
const POLLS_NOW_NS: u64 = 30_000;
/// The same for one that has taken short messages since it was looked at last: a few turns that do
/// read no clock.
const POLLED_BRIEFLY_NS: u64 = 4 * POLLS_NOW_NS;
/// The same for one whose processor this thread has taken to look: it has not polled since.
const POLLED_HERE_NS: u64 = 50_000;

/// How long the thread leaves the sockets to a program that polls: doubled each time it is found
/// polling.
struct Relief {
    next: Duration,
    /// Until when there is none, nanoseconds after the device's epoch.
    denied_until_ns: u64,
    /// How long there is none the next time.
    denial_ns: u64,
    /// When the program had polled last as it was found polling.
    polled_ns: u64,
    /// It was not, for the first time since.
    doubted: bool,
}

impl Relief {
    const FIRST: Duration = Duration::from_micros(10);
    /// A look takes the processor from the program, and with what it wakes and evicts that costs it
    /// some 30 µs.
    const LONGEST: Duration = Duration::from_millis(2);
    /// How long a program that was polling and does not seem to is given to show that it does.
    const DOUBT: Duration = Duration::from_micros(20);
    /// How long a program gets none that left lying what came meanwhile: at first, since it may
    /// only have been kept from running, and at most, doubled each time until it was found polling
    /// twice in a row.
    const FIRST_DENIAL_NS: u64 = 500_000;
    const LONGEST_DENIAL_NS: u64 = 10_000_000;

    fn new() -> Relief {
        Relief {
            next: Relief::FIRST,
            denied_until_ns: 0,
            denial_ns: Relief::FIRST_DENIAL_NS,
            polled_ns: 0,
            doubted: false,
        }
    }

    /// What follows on a look at the program at `now_ns`, which has polled last at `polled_ns`:
    /// `None` watches the sockets.
    fn next(&mut self, polls_now: bool, polled_ns: u64, now_ns: u64) -> Option<Duration> {
        if now_ns < self.denied_until_ns {
            self.next = Relief::FIRST;
            return None;
        }
        if !polls_now {
            // It may want the processor that this thread, or one like it, has just taken.
            self.doubted = self.next > Relief::FIRST && !self.doubted;
            if self.doubted {
                return Some(Relief::DOUBT);
            }
            self.next = Relief::FIRST;
            return None;
        }
        self.doubted = false;
        let relief = self.next;
        if relief > Relief::FIRST && polled_ns != self.polled_ns {
            self.denial_ns = Relief::FIRST_DENIAL_NS;
        }
        self.polled_ns = polled_ns;
        self.next = (relief * 2).min(Relief::LONGEST);
        Some(relief)
    }

    /// When one was over, at `now_ns`, payload lay there that the program had not taken.
    fn missed(&mut self, now_ns: u64) {
        self.denied_until_ns = now_ns + self.denial_ns;
        self.denial_ns = (self.denial_ns * 2).min(Relief::LONGEST_DENIAL_NS);
    }
}

/// What the thread watches while it sleeps, beside what is kicked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Watch {
    /// All, until a timer is due.
    All,
    /// All but the bell, which has rung and is to be read by a thread that stands in; for so long
    /// at most, in case it does not.
    Unread(Duration),
    /// All but the rings, which a thread that waits looks at; for so long at most.
    Wire(Duration),
    /// Only whether somebody rings, for so long: a program that polls does the rest.
    Nothing(Duration),
}

/// What came while it slept.
#[derive(Clone, Copy, Default)]
struct Woken {
    /// Somebody rang.
    by_bell: bool,
    /// A packet or a frame.
    by_wire: bool,
}

/// How a program waits that arms completion queues, as its counts tell.
#[derive(Default)]
struct Waiting {
    /// How often a thread had stood in when this one looked last, and had armed a queue.
    stood_in: u32,
    armed: u32,
    /// How long the rings are left to who stands in: doubled each time another wait is found.
    next: Duration,
    /// How long the bell is, doubled each time it was not read.
    unread: Duration,
}

impl Waiting {
    const FIRST: Duration = Duration::from_micros(100);
    /// What comes is late by as much at most if the program stops waiting and computes.
    const LONGEST: Duration = Duration::from_micros(500);
    /// A thread that stands in and does not read is kept from running, or has never come back from
    /// a handler of a signal: what comes is late by as much then.
    const LONGEST_UNREAD: Duration = Duration::from_millis(4);

    /// What is watched where all would be, after the bell has rung or not: who is to read it shall
    /// find it so.
    fn all(&mut self, last: Watch, has_rung: bool, seat: &StandIn) -> Watch {
        if has_rung && seat.is_there() {
            let unread = self.unread.clamp(Waiting::FIRST, Waiting::LONGEST_UNREAD);
            self.unread = unread * 2;
            return Watch::Unread(unread);
        }
        if !matches!(last, Watch::Unread(_)) {
            self.unread = Duration::ZERO;
        }
        Watch::All
    }

    /// What follows on a look: `None` where the program does not seem to wait for events.
    fn next(&mut self, seat: &StandIn) -> Option<Watch> {
        let (stood_in, armed) = (seat.times(), seat.armed());
        let waited = std::mem::replace(&mut self.stood_in, stood_in) != stood_in;
        let has_armed = std::mem::replace(&mut self.armed, armed) != armed;
        if waited && !seat.has_others() {
            let next = self.next.clamp(Waiting::FIRST, Waiting::LONGEST);
            self.next = next * 2;
            return Some(Watch::Wire(next));
        }
        self.next = Waiting::FIRST;
        // A long wait, too: the program may compute as long when it is over.
        (has_armed || seat.is_there()).then_some(Watch::All)
    }
}

/// Whether a stream runs to a program that does not poll. The thread then looks again for a moment
/// before it sleeps: to wake it costs the sender more than a train does, and a sleeping CPU more
/// than that.
#[derive(Default)]
struct Stream {
    /// When the stream has dried up, nanoseconds after the device's epoch.
    ends_ns: u64,
}

impl Stream {
    /// Payload of one turn that makes a stream.
    const BYTES: usize = 32 << 10;
    /// As much as a packet that came by a ring weighs: others come from anybody, and shall not keep
    /// the thread awake.
    const PACKET_BYTES: usize = 2 << 10;
    /// How long after a turn with payload more of it is awaited.
    const LINGER_NS: u64 = 50_000;

    /// Takes note of a turn that ended at `now_ns` and brought `bytes` of payload, and so many
    /// packets by rings; answers whether to look again.
    fn goes_on(&mut self, bytes: usize, by_ring: usize, now_ns: u64) -> bool {
        if bytes + by_ring * Stream::PACKET_BYTES >= Stream::BYTES {
            self.ends_ns = now_ns + Stream::LINGER_NS;
        }
        now_ns < self.ends_ns
    }
}

/// Body of the progress thread; ends with the device. A panic, which is a bug of ours, ends the
/// device.
pub(crate) fn run(device: &Weak<Device>) {
    let ended = catch_unwind(AssertUnwindSafe(|| go_on(device)));
    if let Some(device) = device.upgrade() {
        if let Err(panic) = ended {
            device.fail(&*panic);
        }
        device.adapter.thread.ends();
    }
    // Other devices' threads look after what is mapped from now on.
    mm::forget_all();
}

fn go_on(device: &Weak<Device>) {
    // Where it cannot be held, neighbours go by packets.
    let shown = device.upgrade().filter(|device| device.adapter.has_neighbours());
    let _held = shown.and_then(|device| device.directory().hold().ok());
    if let Some(device) = device.upgrade() {
        device.adapter.thread.has_begun();
    }
    let mut growing = Relief::new();
    let mut waiting = Waiting::default();
    let mut watch = Watch::All;
    let mut owed = 0;
    let mut stream = Stream::default();
    let mut awake = false;
    let mut brief_turns = 0;
    while let Some(device) = device.upgrade() {
        let thread = &device.adapter.thread;
        thread.stand_if_asked();
        if thread.is_stopped() || device.has_failed() {
            return;
        }
        let next_look = mm::forget_unused();
        let woken = match awake {
            true => Woken::default(),
            false => sleep(&device, watch, next_look),
        };
        device.data_direct().apply_request();
        device.adapter.attach_rings();
        let polled_ns = thread.polled_ns();
        let now_ns = device.now_ns();
        let was_relieved = matches!(watch, Watch::Nothing(_));
        let before = std::mem::replace(&mut brief_turns, thread.brief_turns());
        let recent = match () {
            () if brief_turns != before => POLLED_BRIEFLY_NS,
            () if thread.polled_here() => POLLED_HERE_NS,
            () => POLLS_NOW_NS,
        };
        let polls_now = now_ns.saturating_sub(polled_ns) < recent;
        let last = watch;
        watch = match waiting.next(&thread.stand_in) {
            Some(watch) => watch,
            None if woken.by_bell => Watch::All,
            None => growing.next(polls_now, polled_ns, now_ns).map_or(Watch::All, Watch::Nothing),
        };
        if watch == Watch::All {
            watch = waiting.all(last, woken.by_bell, &thread.stand_in);
        }
        let leaves_rings = matches!(watch, Watch::Wire(_));
        if woken.by_bell && !thread.stand_in.is_there() {
            thread.stand_in.take_rings();
            // Who has begun to read in between looks for itself.
            thread.stand_in.event();
        }
        device.pay_old(&mut owed, leaves_rings);
        let has_turn = match watch {
            Watch::All | Watch::Unread(_) => true,
            Watch::Wire(_) => {
                let came = woken.by_bell || woken.by_wire || device.rings_were_left();
                came || device.adapter.timers.are_due(now_ns)
            }
            Watch::Nothing(_) => false,
        };
        awake = has_turn && {
            let Done { bytes, by_ring, ended_ns } = device.progress_waiting();
            if was_relieved && bytes > 0 {
                growing.missed(now_ns);
            }
            let goes_on = stream.goes_on(bytes, by_ring, ended_ns) && watch == Watch::All;
            if goes_on && bytes == 0 {
                // Whoever else wants this CPU goes first.
                std::thread::yield_now();
            }
            goes_on
        };
    }
}

/// Sleeps until what is watched comes, a timer is due or a kick; the program that polls also serves
/// the timers, and one that just stopped finds them at most as late as the relief is long, and as
/// long as it is given to show that it has not. For `longest` at most.
fn sleep(device: &Device, watch: Watch, longest: Option<Duration>) -> Woken {
    let adapter = &*device.adapter;
    let thread = &adapter.thread;
    let stand_in = &thread.stand_in;
    let watches_rings = matches!(watch, Watch::All | Watch::Unread(_));
    stand_in.set_watched(watches_rings);
    if watches_rings {
        device.pay();
    }
    stand_in.set_left(matches!(watch, Watch::Wire(_)));
    let limit = match watch {
        Watch::All => None,
        Watch::Unread(limit) | Watch::Wire(limit) | Watch::Nothing(limit) => Some(limit),
    };
    let timer = match watch {
        Watch::Nothing(_) => None,
        _ if watches_rings && !device.rings_may_wait() => Some(Duration::ZERO),
        _ => until_timer(adapter),
    };
    let timeout = [limit, timer, longest].into_iter().flatten().min();
    let timeout =
        timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
    let tap = device.raw.tap();
    let own = adapter.endpoint().own_addresses();
    let mut fds: smallvec::SmallVec<[PollFd<'_>; 6]> = smallvec::SmallVec::new();
    let mut add = |fd| fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
    add(thread.fd());
    let interfaces = adapter.watch_fd();
    interfaces.into_iter().for_each(&mut add);
    // Also where somebody stands in: its thread may be kept from running for long, or never come
    // back from a handler of a signal.
    let rings = matches!(watch, Watch::All | Watch::Nothing(_));
    if rings {
        add(stand_in.bell());
    }
    if !matches!(watch, Watch::Nothing(_)) {
        adapter.endpoint().receive_fds().for_each(&mut add);
        own.iter().map(|own| own.fd()).for_each(&mut add);
        tap.iter().map(|tap| tap.fd()).for_each(&mut add);
    }
    // Interrupted or not, the caller looks at everything else afterwards.
    let _ = poll(&mut fds, timeout.as_ref());
    let came = |at: usize| !fds[at].revents().is_empty();
    if came(0) {
        thread.take_kicks();
    }
    if interfaces.is_some() && came(1) {
        drop(adapter.port_now());
        if let Fabric::Ethernet(port) = device.network() {
            port.follow_host();
        }
    }
    let bell = 1 + usize::from(interfaces.is_some());
    let by_bell = rings && came(bell);
    let by_wire = (bell + usize::from(rings)..fds.len()).any(came);
    if watches_rings {
        device.is_awake();
    }
    thread.is_awake();
    Woken { by_bell, by_wire }
}

/// Announces a sleep until the next timer, and says how long that is.
fn until_timer(adapter: &Adapter) -> Option<Duration> {
    let first = adapter.timers.until_next(Instant::now());
    let wakes_at = first.map_or(u64::MAX, |t| adapter.now_ns() + t.as_nanos() as u64);
    adapter.thread.announce(wakes_at);
    // A deadline set between reading the heap and announcing the sleep would be missed without a
    // second look.
    let second = adapter.timers.until_next(Instant::now());
    first.into_iter().chain(second).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relief_grows_while_the_program_polls_and_ends_when_it_stops() {
        let mut relief = Relief::new();
        assert_eq!(relief.next(true, 0, 0), Some(Relief::FIRST));
        assert_eq!(relief.next(true, 0, 0), Some(Relief::FIRST * 2));
        for _ in 0..10 {
            relief.next(true, 0, 0);
        }
        assert_eq!(relief.next(true, 0, 0), Some(Relief::LONGEST));
        assert_eq!(relief.next(false, 0, 0), Some(Relief::DOUBT));
        assert_eq!(relief.next(false, 0, 0), None);
        assert_eq!(relief.next(true, 0, 0), Some(Relief::FIRST));
    }

    #[test]
    fn who_was_kept_from_polling_for_a_moment_goes_on() {
        let mut relief = Relief::new();
        for _ in 0..10 {
            relief.next(true, 0, 0);
        }
        for _ in 0..10 {
            assert_eq!(relief.next(false, 0, 0), Some(Relief::DOUBT));
            assert_eq!(relief.next(true, 0, 0), Some(Relief::LONGEST));
        }
    }

    #[test]
    fn who_left_payload_lying_gets_no_relief_for_a_while() {
        let mut relief = Relief::new();
        let mut now_ns = 0;
        for denial_ns in [500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000, 10_000_000] {
            // One poll, seen twice.
            assert_eq!(relief.next(true, now_ns, now_ns), Some(Relief::FIRST));
            assert_eq!(relief.next(true, now_ns, now_ns), Some(Relief::FIRST * 2));
            assert_eq!(relief.next(false, now_ns, now_ns), Some(Relief::DOUBT));
            assert_eq!(relief.next(false, now_ns, now_ns), None);
            relief.missed(now_ns);
            assert_eq!(relief.next(true, now_ns, now_ns + denial_ns - 1), None);
            now_ns += denial_ns;
        }
        // Who is found polling again and again has only been kept from running.
        assert_eq!(relief.next(true, now_ns, now_ns), Some(Relief::FIRST));
        assert_eq!(relief.next(true, now_ns + 1, now_ns + 1), Some(Relief::FIRST * 2));
        relief.missed(now_ns);
        assert_eq!(relief.next(true, now_ns + 2, now_ns + 500_000), Some(Relief::FIRST * 4));
    }

    fn seat() -> crate::adapter::thread::Thread {
        crate::adapter::thread::Thread::new().unwrap()
    }

    fn wire(us: u64) -> Option<Watch> {
        Some(Watch::Wire(Duration::from_micros(us)))
    }

    #[test]
    fn the_rings_are_left_to_who_waits_again_and_again() {
        let (mut waiting, thread) = (Waiting::default(), seat());
        let seat = &thread.stand_in;
        assert_eq!(waiting.next(seat), None);
        for us in [100, 200, 400, 500, 500] {
            assert!(seat.enters(true));
            assert_eq!(waiting.next(seat), wire(us));
            seat.leaves(true);
        }
        // It may compute now.
        assert_eq!(waiting.next(seat), None);
        assert!(seat.enters(true));
        assert_eq!(waiting.next(seat), wire(100), "as at first");
    }

    #[test]
    fn in_a_long_wait_and_after_an_arming_all_is_watched() {
        let (mut waiting, thread) = (Waiting::default(), seat());
        let seat = &thread.stand_in;
        assert!(seat.enters(true));
        assert_eq!(waiting.next(seat), wire(100));
        assert_eq!(waiting.next(seat), Some(Watch::All));
        assert_eq!(waiting.next(seat), Some(Watch::All), "as long as it waits");
        seat.leaves(true);
        assert_eq!(waiting.next(seat), None);
        seat.arms();
        assert_eq!(waiting.next(seat), Some(Watch::All));
        assert_eq!(waiting.next(seat), None, "once for each arming");
    }

    #[test]
    fn where_several_wait_the_rings_are_left_to_none() {
        let (mut waiting, thread) = (Waiting::default(), seat());
        let seat = &thread.stand_in;
        assert!(seat.enters(true) && !seat.enters(true));
        assert_eq!(waiting.next(seat), Some(Watch::All));
        seat.leaves(false);
        seat.leaves(true);
        assert!(seat.enters(true));
        assert_eq!(waiting.next(seat), wire(100));
    }
}
