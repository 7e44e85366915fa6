//! A connection's times: those that the specification encodes in a few bits, and the requester's
//! own estimate of the round trip.

use std::time::{Duration, Instant};

pub use wire::timer::rnr_timer as rnr_wait;

/// How often in a row a wait doubles.
const DOUBLINGS: u32 = 2;
/// But not beyond this: longer than that nobody is kept from running, and whoever waits for a dead
/// peer has waited enough.
const LONGEST_GROWN: Duration = Duration::from_millis(500);

/// How long a requester waits for an acknowledge when `in_a_row` waits have ended without one;
/// `None` is for ever. From once to four times the time of `code`, which are the bounds of IBA
/// 9.7.6.1.3: a loss is found soon, and a peer that is not scheduled for a while, on a busy host,
/// does not use up the retries.
pub fn ack_wait(code: u8, in_a_row: u32) -> Option<Duration> {
    let once = wire::timer::local_ack_timeout(code)?;
    let grown = once.saturating_mul(1 << in_a_row.min(DOUBLINGS));
    Some(grown.min(LONGEST_GROWN).max(once))
}

/// Shortest wait before a probe: below it, scheduling on a busy host looks like loss.
pub(crate) const PROBE_FLOOR: Duration = Duration::from_millis(1);
/// Probes whose interval still doubles.
const PROBE_DOUBLINGS: u32 = 9;
/// Probes within one ACK timeout, which is the specification's own way to find a loss.
const PROBES_PER_TIMEOUT: u32 = 6;

/// Smoothed round trip time, measured on one packet at a time.
#[derive(Debug, Default)]
pub(crate) struct RoundTrip {
    smoothed: Option<Duration>,
}

impl RoundTrip {
    /// Takes one measurement in: 1/8 new, 7/8 old.
    pub(crate) fn sample(&mut self, taken: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => taken,
            Some(old) => old - old / 8 + taken / 8,
        });
    }

    /// The estimate; `None` before the first measurement.
    pub(crate) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    fn probe_base(&self) -> Duration {
        self.smoothed.map_or(PROBE_FLOOR, |rtt| (rtt * 4).max(PROBE_FLOOR))
    }
}

/// The timers that run while requests are unacknowledged.
#[derive(Debug, Default)]
pub(crate) struct AckTimers {
    /// When the ACK timeout began: last progress, retry or first packet of a flight.
    since: Option<Instant>,
    probe_at: Option<Instant>,
    probes: u32,
}

impl AckTimers {
    /// Nothing is unacknowledged.
    pub(crate) fn stop(&mut self) {
        *self = AckTimers::default();
    }

    /// Starts anew because the peer made progress or a retry begins.
    pub(crate) fn restart(&mut self, now: Instant, rtt: &RoundTrip) {
        self.since = Some(now);
        self.probes = 0;
        self.probe_at = Some(now + rtt.probe_base());
    }

    /// Starts unless running.
    pub(crate) fn ensure(&mut self, now: Instant, rtt: &RoundTrip) {
        if self.since.is_none() {
            self.restart(now, rtt);
        }
    }

    /// Whether the local ACK timeout passed.
    pub(crate) fn expired(&self, now: Instant, timeout: Option<Duration>) -> bool {
        matches!((self.since, timeout), (Some(since), Some(t)) if now >= since + t)
    }

    /// Whether a probe is due; notes it as sent.
    pub(crate) fn take_probe(
        &mut self,
        now: Instant,
        rtt: &RoundTrip,
        timeout: Option<Duration>,
    ) -> bool {
        if self.probe_at.is_none_or(|at| now < at) {
            return false;
        }
        self.probes += 1;
        // Without a timeout the probes are the only way out of a lost tail: they go on, ever more
        // slowly.
        self.probe_at = (timeout.is_none() || self.probes < PROBES_PER_TIMEOUT)
            .then(|| now + rtt.probe_base() * (1 << self.probes.min(PROBE_DOUBLINGS)));
        true
    }

    /// When to look again once they run, which they did at `now` at the latest.
    pub(crate) fn deadline_since(
        &self,
        now: Instant,
        rtt: &RoundTrip,
        timeout: Option<Duration>,
    ) -> Option<Instant> {
        if self.since.is_some() {
            return self.deadline(timeout);
        }
        let wait = timeout.map_or(rtt.probe_base(), |timeout| timeout.min(rtt.probe_base()));
        Some(now + wait)
    }

    /// When to look again.
    pub(crate) fn deadline(&self, timeout: Option<Duration>) -> Option<Instant> {
        let expiry = self.since.zip(timeout).map(|(since, t)| since + t);
        earlier(self.probe_at, expiry)
    }
}

/// The earlier of two instants, as far as there are any.
pub(crate) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, None) => one,
        (None, other) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_table_is_that_of_the_specification() {
        assert_eq!(rnr_wait(0), Duration::from_micros(655_360));
        assert_eq!(rnr_wait(1), Duration::from_micros(10));
        assert_eq!(rnr_wait(12), Duration::from_micros(640));
        assert_eq!(rnr_wait(31), Duration::from_micros(491_520));
        for code in 2..32 {
            assert!(rnr_wait(code) > rnr_wait(code - 1));
        }
    }

    #[test]
    fn ack_waits_double_up_to_four_times_the_time() {
        assert_eq!(ack_wait(0, 3), None);
        let times = |code, multiples: [u64; 5]| {
            let waits = [0, 1, 2, 3, u32::MAX].map(|in_a_row| ack_wait(code, in_a_row).unwrap());
            assert_eq!(waits, multiples.map(|times| Duration::from_nanos((4096 << code) * times)));
        };
        times(1, [1, 2, 4, 4, 4]);
        times(14, [1, 2, 4, 4, 4]);
        times(17, [1, 1, 1, 1, 1]);
        times(31, [1, 1, 1, 1, 1]);
    }

    #[test]
    fn probes_back_off_and_end_within_a_timeout() {
        let start = Instant::now();
        let rtt = RoundTrip::default();
        let mut timers = AckTimers::default();
        timers.ensure(start, &rtt);
        let timeout = ack_wait(20, 0);
        let mut sent = Vec::new();
        let mut now = start;
        while let Some(at) = timers.probe_at {
            now = at;
            assert!(timers.take_probe(now, &rtt, timeout));
            sent.push(now - start);
        }
        assert_eq!(sent.len() as u32, PROBES_PER_TIMEOUT);
        assert_eq!(sent[..3], [1, 3, 7].map(Duration::from_millis));
        assert!(!timers.expired(now, timeout));
        assert_eq!(timers.deadline(timeout), Some(start + Duration::from_nanos(4096 << 20)));
    }
}
