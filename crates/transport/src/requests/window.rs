//! How much a requester may have in flight, and how fast an unreliable one may send.
//!
//! RoCE assumes a fabric that loses nothing; sockets with a small buffer do. The window counts what
//! a packet costs the receiver's socket buffer, not its payload only, starts at a share of the
//! limit, grows while acknowledges come, and loss shrinks it, by half where each round trip has
//! some. Unreliable services hear nothing back: they keep to a pace.

use std::time::{Duration, Instant};

/// What a packet costs beyond its payload: what Linux charges to a socket's buffer for a short
/// datagram.
const PACKET_COST: u64 = 832;
/// What a further packet of the same request costs beyond its payload: headers, and its share in a
/// GRO train. Where the path breaks trains up it is more; loss then tells.
pub(crate) const FURTHER_COST: u64 = 96;

/// What the first `packets` packets of a request cost beyond their payload.
pub(crate) fn request_cost(packets: u32) -> u64 {
    match packets {
        0 => 0,
        more => PACKET_COST + u64::from(more - 1) * FURTHER_COST,
    }
}
/// Where an untried window starts, if the limit allows.
const START: u64 = 128 << 10;
/// Packets that always fit.
const LEAST_PACKETS: u64 = 2;

/// By how many packets a window grows per round trip once it has been too large.
const STEP_PACKETS: u64 = 2;
/// The share of rounds with a loss is counted in this many parts.
const WHOLE: u64 = 1 << 10;
/// Weight of the latest round in that share: one in so many.
const WEIGHT: u64 = 8;

/// Bytes that may be in flight.
#[derive(Debug)]
pub(crate) struct Window {
    limit: u64,
    size: u64,
    /// Below it the window doubles per round trip, above it grows by [`STEP_PACKETS`].
    threshold: u64,
    packet: u64,
    /// Share of late rounds, each a window's worth of bytes, in which something was lost, of
    /// [`WHOLE`].
    trouble: u64,
    /// Bytes that still have to be acknowledged before the round is over.
    round_left: u64,
    /// Something was lost in this round.
    troubled: bool,
}

impl Window {
    /// A window of at most `limit` bytes over packets of `mtu` bytes of payload.
    pub(crate) fn new(limit: u64, mtu: u32) -> Window {
        let packet = u64::from(mtu) + PACKET_COST;
        let limit = limit.max(LEAST_PACKETS * packet);
        let size = limit.min(START.max(LEAST_PACKETS * packet));
        let threshold = limit;
        let (trouble, round_left, troubled) = (WHOLE, size, false);
        Window { limit, size, threshold, packet, trouble, round_left, troubled }
    }

    /// Present size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// `bytes` left the flight by an acknowledge.
    pub(crate) fn acknowledged(&mut self, bytes: u64) {
        let growth = match self.size < self.threshold {
            true => bytes,
            false => STEP_PACKETS * self.packet * bytes / self.size,
        };
        self.size = (self.size + growth).min(self.limit);
        self.round_left = self.round_left.saturating_sub(bytes);
        if self.round_left == 0 {
            let latest = if self.troubled { WHOLE } else { 0 };
            self.trouble = self.trouble - self.trouble / WEIGHT + latest / WEIGHT;
            self.troubled = false;
            self.round_left = self.size;
        }
    }

    /// Something in flight was lost. Where each round loses something the window is halved, and
    /// where not all do it gives up much less: a link that is full loses again and again, and one
    /// that is bad loses whatever is in flight. Once a round.
    pub(crate) fn lost(&mut self) {
        if !std::mem::replace(&mut self.troubled, true) {
            self.shrink(self.trouble.pow(3) / WHOLE.pow(2));
        }
    }

    /// The peer was silent for as long as it may be.
    pub(crate) fn timed_out(&mut self) {
        self.troubled = true;
        self.shrink(WHOLE);
    }

    /// The peer was not ready for what comes next, and is still not: little is sent until it is, as
    /// it takes nothing else, and then as much as before within few round trips.
    pub(crate) fn not_ready(&mut self) {
        self.threshold = self.threshold.max(self.size);
        self.size = LEAST_PACKETS * self.packet;
        self.round_left = self.round_left.min(self.size);
    }

    /// Gives up half of the `part` of [`WHOLE`].
    fn shrink(&mut self, part: u64) {
        let less = self.size - self.size * part / WHOLE / 2;
        self.size = less.max(LEAST_PACKETS * self.packet);
        self.threshold = self.size;
        self.round_left = self.round_left.min(self.size);
    }
}

/// Within this time even a receiver on a busy host empties its socket buffer once.
const DRAIN: Duration = Duration::from_millis(8);
/// But a small buffer does not slow an unreliable service below this rate, in bytes per second.
const LEAST_RATE: u64 = 100_000_000;

/// The pace of an unreliable service: half a buffer at once, then a buffer per drain. Such a
/// service expects a fabric that loses nothing, and has no way to learn that a socket overflowed.
#[derive(Debug)]
pub(crate) struct Pace {
    capacity: u64,
    tokens: u64,
    drain_ns: u64,
    refilled: Option<Instant>,
}

impl Pace {
    /// A pace that a buffer of `limit` bytes bears.
    pub(crate) fn new(limit: u64, mtu: u32) -> Pace {
        let capacity = (limit / 2).max(LEAST_PACKETS * (u64::from(mtu) + PACKET_COST));
        let drain_ns = (2 * capacity * 1_000_000_000 / LEAST_RATE).min(DRAIN.as_nanos() as u64);
        Pace { capacity, tokens: capacity, drain_ns, refilled: None }
    }

    /// Takes `cost` bytes, or says when to ask again.
    pub(crate) fn take(&mut self, now: Instant, cost: u64) -> Result<(), Instant> {
        let drain = self.drain_ns;
        let since = now.saturating_duration_since(*self.refilled.get_or_insert(now)).as_nanos();
        let fresh = 2 * self.capacity * since.min(drain.into()) as u64 / drain;
        if fresh > 0 {
            self.refilled = Some(now);
            self.tokens = (self.tokens + fresh).min(self.capacity);
        }
        if let Some(left) = self.tokens.checked_sub(cost) {
            self.tokens = left;
            return Ok(());
        }
        // Not for each packet anew: a quarter at a time makes trains.
        let missing = cost.max(self.capacity / 4) - self.tokens;
        Err(now + Duration::from_nanos(missing * drain / (2 * self.capacity) + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_limit_and_a_silent_peer_halves_it() {
        let mut window = Window::new(1 << 20, 1024);
        assert_eq!(window.size(), START);
        for _ in 0..16 {
            window.acknowledged(window.size());
        }
        assert_eq!(window.size(), 1 << 20);
        window.timed_out();
        assert_eq!(window.size(), 1 << 19);
        let before = window.size();
        window.acknowledged(before);
        assert_eq!(window.size(), before + STEP_PACKETS * (1024 + PACKET_COST));
        for _ in 0..64 {
            window.timed_out();
        }
        assert_eq!(window.size(), LEAST_PACKETS * (1024 + PACKET_COST));
    }

    /// Rounds, of which each `every`th loses something, until the window has settled.
    fn settled(every: u64) -> u64 {
        let mut window = Window::new(4 << 20, 4096);
        for round in 0..1000 {
            if round % every == 0 {
                window.lost();
                let shrunk = window.size();
                window.lost();
                assert_eq!(window.size(), shrunk, "once a round");
            }
            window.acknowledged(window.size());
        }
        window.size()
    }

    #[test]
    fn rare_losses_take_little_and_frequent_ones_half() {
        let (each, tenth) = (settled(1), settled(10));
        // It gives up in each round what it grew by in the one before; halves are rounded up.
        assert!(each <= 2 * STEP_PACKETS * (4096 + PACKET_COST) + 1, "{each}");
        assert_eq!(tenth, 4 << 20, "the limit");
    }

    #[test]
    fn the_first_loss_halves() {
        let mut window = Window::new(1 << 20, 1024);
        window.lost();
        assert_eq!(window.size(), START / 2);
    }

    #[test]
    fn a_peer_that_becomes_ready_has_the_window_back_soon() {
        let mut window = Window::new(1 << 20, 1024);
        (0..16).for_each(|_| window.acknowledged(window.size()));
        for _ in 0..100 {
            window.not_ready();
            assert_eq!(window.size(), LEAST_PACKETS * (1024 + PACKET_COST));
        }
        (0..10).for_each(|_| window.acknowledged(window.size()));
        assert_eq!(window.size(), 1 << 20);
    }

    #[test]
    fn a_tiny_limit_still_lets_packets_pass() {
        assert_eq!(Window::new(0, 4096).size(), LEAST_PACKETS * (4096 + PACKET_COST));
    }

    #[test]
    fn an_unreliable_service_sends_a_buffer_per_drain() {
        for (limit, drain) in [(1 << 20, DRAIN), (200_000, Duration::from_millis(2))] {
            let start = Instant::now();
            let mut pace = Pace::new(limit, 1024);
            let (mut now, mut sent) = (start, 0);
            while now - start < 10 * drain {
                match pace.take(now, 1536) {
                    Ok(()) => sent += 1536,
                    Err(at) => {
                        assert!(at > now && at - now <= drain);
                        now = at;
                    }
                }
            }
            let share = sent as f64 / (limit as f64 * 10.5);
            assert!((0.95..1.05).contains(&share), "{share}");
        }
    }
}
