//! The progress thread.
//!
//! It sleeps in `poll(2)` on the link's sockets and on the news of the host's interfaces. When it
//! wakes and the program has polled just now, it leaves the sockets to the program for a while
//! (`Relief`), the longer the more often it finds that; so a polling program is not disturbed by a
//! second thread, and one-sided traffic to a program that does not poll is served at once. A
//! program that polls for a moment only, as one does that then spins on memory until the peer's
//! next write, is found out by what it left lying: for some time it gets no relief.

use super::Device;
use super::turn::Done;
use crate::adapter::Adapter;
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
    let mut relief = None;
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
        if !awake {
            sleep(&device, relief, next_look);
        }
        device.data_direct().apply_request();
        device.adapter.attach_rings();
        let polled_ns = thread.polled_ns();
        let now_ns = device.now_ns();
        let was_relieved = relief.is_some();
        let before = std::mem::replace(&mut brief_turns, thread.brief_turns());
        let recent = match () {
            () if brief_turns != before => POLLED_BRIEFLY_NS,
            () if thread.polled_here() => POLLED_HERE_NS,
            () => POLLS_NOW_NS,
        };
        let polls_now = now_ns.saturating_sub(polled_ns) < recent;
        relief = growing.next(polls_now, polled_ns, now_ns);
        awake = relief.is_none() && {
            let Done { bytes, by_ring, ended_ns } = device.progress_waiting();
            if was_relieved && bytes > 0 {
                growing.missed(now_ns);
            }
            let goes_on = stream.goes_on(bytes, by_ring, ended_ns);
            if goes_on && bytes == 0 {
                // Whoever else wants this CPU goes first.
                std::thread::yield_now();
            }
            goes_on
        };
    }
}

/// Sleeps until a packet arrives, a timer is due or a kick; with `relief` only until that is over
/// or a kick: the program that polls also serves the timers, and one that just stopped finds them
/// at most that late, and as long as it is given to show that it has not. For `longest` at most.
fn sleep(device: &Device, relief: Option<Duration>, longest: Option<Duration>) {
    let adapter = &*device.adapter;
    let thread = &adapter.thread;
    let timeout = match relief {
        Some(relief) => Some(relief),
        None if !device.rings_may_wait() => Some(Duration::ZERO),
        None => until_timer(adapter),
    };
    let timeout = timeout.into_iter().chain(longest).min();
    let timeout =
        timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
    let tap = device.raw.tap();
    let own = adapter.endpoint().own_addresses();
    let mut fds: smallvec::SmallVec<[PollFd<'_>; 4]> = smallvec::SmallVec::new();
    fds.push(PollFd::from_borrowed_fd(thread.fd(), PollFlags::IN));
    let watch = adapter.watch_fd();
    fds.extend(watch.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
    if relief.is_none() {
        for fd in adapter.endpoint().receive_fds() {
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        fds.extend(own.iter().map(|own| PollFd::from_borrowed_fd(own.fd(), PollFlags::IN)));
        if let Some(tap) = &tap {
            fds.push(PollFd::from_borrowed_fd(tap.fd(), PollFlags::IN));
        }
    }
    // Interrupted or not, the caller looks at everything else afterwards.
    let _ = poll(&mut fds, timeout.as_ref());
    adapter.directory().is_awake();
    if !fds[0].revents().is_empty() {
        thread.take_kicks();
    }
    if watch.is_some() && !fds[1].revents().is_empty() {
        drop(adapter.port_now());
        if let Fabric::Ethernet(port) = device.network() {
            port.follow_host();
        }
    }
    thread.is_awake();
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
}
