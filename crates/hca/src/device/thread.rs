//! The progress thread.
//!
//! It sleeps in `poll(2)` on the link's sockets and on the news of the host's interfaces. When it
//! wakes and the program polls at this very moment, it leaves the sockets to the program for a
//! while (`Relief`), the longer the more often it finds that; so a polling program is not
//! disturbed by a second thread, and one-sided traffic to a program that does not poll is served at
//! once. A program that polls for a moment only, as one does that then spins on memory until the
//! peer's next write, is found out by what it left lying: for some time it gets no relief.

use super::Device;
use crate::adapter::Adapter;
use crate::fabric::Fabric;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Weak;
use std::time::{Duration, Instant};

/// A program whose last poll is not older polls right now.
const POLLS_NOW_NS: u64 = 3_000;
/// The same for one whose processor this thread has taken to look: it has not polled since.
const POLLED_HERE_NS: u64 = 50_000;

/// How long the thread leaves the sockets to a program that polls: doubled each time it is found
/// polling.
struct Relief {
    next: Duration,
    /// Until when there is none, nanoseconds after the device's epoch.
    denied_until_ns: u64,
}

impl Relief {
    const FIRST: Duration = Duration::from_micros(10);
    const LONGEST: Duration = Duration::from_millis(1);
    /// How long a program gets none that left lying what came meanwhile.
    const DENIAL_NS: u64 = 10_000_000;

    fn new() -> Relief {
        Relief { next: Relief::FIRST, denied_until_ns: 0 }
    }

    /// What follows on a look at the program at `now_ns`: `None` watches the sockets.
    fn next(&mut self, polls_now: bool, now_ns: u64) -> Option<Duration> {
        if !polls_now || now_ns < self.denied_until_ns {
            self.next = Relief::FIRST;
            return None;
        }
        let relief = self.next;
        self.next = (relief * 2).min(Relief::LONGEST);
        Some(relief)
    }

    /// When one was over, at `now_ns`, payload lay there that the program had not taken.
    fn missed(&mut self, now_ns: u64) {
        self.denied_until_ns = now_ns + Relief::DENIAL_NS;
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
    /// How long after a turn with payload more of it is awaited.
    const LINGER_NS: u64 = 50_000;

    /// Takes note of a turn that ended at `now_ns` and brought `bytes` of payload; answers whether
    /// to look again.
    fn goes_on(&mut self, bytes: usize, now_ns: u64) -> bool {
        if bytes >= Stream::BYTES {
            self.ends_ns = now_ns + Stream::LINGER_NS;
        }
        now_ns < self.ends_ns
    }
}

/// Body of the progress thread; ends with the device. A panic, which is a bug of ours, ends the
/// device.
pub(crate) fn run(device: &Weak<Device>) {
    let ended = catch_unwind(AssertUnwindSafe(|| go_on(device)));
    let Some(device) = device.upgrade() else { return };
    if let Err(panic) = ended {
        device.fail(&*panic);
    }
    device.adapter.thread.ends();
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
    while let Some(device) = device.upgrade() {
        let thread = &device.adapter.thread;
        thread.stand_if_asked();
        if thread.is_stopped() || device.has_failed() {
            return;
        }
        if !awake {
            sleep(&device, relief);
        }
        device.data_direct().apply_request();
        device.adapter.attach_rings();
        let polled_ns = thread.polled_ns();
        let now_ns = device.now_ns();
        let was_relieved = relief.is_some();
        let recent = if thread.polled_here() { POLLED_HERE_NS } else { POLLS_NOW_NS };
        relief = growing.next(now_ns.saturating_sub(polled_ns) < recent, now_ns);
        awake = relief.is_none() && {
            let bytes = device.progress_waiting();
            if was_relieved && bytes > 0 {
                growing.missed(now_ns);
            }
            let goes_on = stream.goes_on(bytes, device.now_ns());
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
/// at most that late.
fn sleep(device: &Device, relief: Option<Duration>) {
    let adapter = &*device.adapter;
    let thread = &adapter.thread;
    let timeout = match relief {
        Some(relief) => Some(relief),
        None if !device.rings_may_wait() => Some(Duration::ZERO),
        None => until_timer(adapter),
    };
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
        assert_eq!(relief.next(true, 0), Some(Relief::FIRST));
        assert_eq!(relief.next(true, 0), Some(Relief::FIRST * 2));
        for _ in 0..10 {
            relief.next(true, 0);
        }
        assert_eq!(relief.next(true, 0), Some(Relief::LONGEST));
        assert_eq!(relief.next(false, 0), None);
        assert_eq!(relief.next(true, 0), Some(Relief::FIRST));
    }

    #[test]
    fn who_left_payload_lying_gets_no_relief_for_a_while() {
        let mut relief = Relief::new();
        assert_eq!(relief.next(true, 5), Some(Relief::FIRST));
        assert_eq!(relief.next(false, 6), None);
        relief.missed(6);
        assert_eq!(relief.next(true, 7), None);
        assert_eq!(relief.next(true, 5 + Relief::DENIAL_NS), None);
        assert_eq!(relief.next(true, 6 + Relief::DENIAL_NS), Some(Relief::FIRST));
    }
}
