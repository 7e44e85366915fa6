//! How much a requester may have in flight, and how fast an unreliable one may send.
//!
//! RoCE assumes a fabric that loses nothing; sockets with a small buffer do. The window counts what
//! a packet costs the receiver's socket buffer, not its payload only, starts at a share of the
//! limit, grows while acknowledges come and is halved by loss. Unreliable services hear nothing
//! back: they keep to a pace.

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

/// Bytes that may be in flight.
#[derive(Debug)]
pub(crate) struct Window {
    limit: u64,
    size: u64,
    /// Below it the window doubles per round trip, above it grows by a packet.
    threshold: u64,
    packet: u64,
}

impl Window {
    /// A window of at most `limit` bytes over packets of `mtu` bytes of payload.
    pub(crate) fn new(limit: u64, mtu: u32) -> Window {
        let packet = u64::from(mtu) + PACKET_COST;
        let limit = limit.max(LEAST_PACKETS * packet);
        Window {
            limit,
            size: limit.min(START.max(LEAST_PACKETS * packet)),
            threshold: limit,
            packet,
        }
    }

    /// Present size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// `bytes` left the flight by an acknowledge.
    pub(crate) fn acknowledged(&mut self, bytes: u64) {
        let growth =
            if self.size < self.threshold { bytes } else { self.packet * bytes / self.size };
        self.size = (self.size + growth).min(self.limit);
    }

    /// Something in flight was lost.
    pub(crate) fn lost(&mut self) {
        self.size = (self.size / 2).max(LEAST_PACKETS * self.packet);
        self.threshold = self.size;
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
    fn grows_to_the_limit_and_is_halved_by_loss() {
        let mut window = Window::new(1 << 20, 1024);
        assert_eq!(window.size(), START);
        for _ in 0..16 {
            window.acknowledged(window.size());
        }
        assert_eq!(window.size(), 1 << 20);
        window.lost();
        assert_eq!(window.size(), 1 << 19);
        let before = window.size();
        window.acknowledged(before);
        assert_eq!(window.size(), before + 1024 + PACKET_COST);
        for _ in 0..64 {
            window.lost();
        }
        assert_eq!(window.size(), LEAST_PACKETS * (1024 + PACKET_COST));
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
