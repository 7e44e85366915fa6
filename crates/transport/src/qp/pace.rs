//! How fast a queue pair sends since it was told that its packets met congestion: the reaction
//! point of DCQCN (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", 2015).
//!
//! A notification cuts the rate, by up to half where they come often and by less where they are
//! rare. Without one the rate goes back to what it was before, in halving steps, then probes for
//! more, in steps that grow. Once it has reached the rate of a port there is no limit any more. The
//! paper's clock is that of a network whose round trips take microseconds; where they are known to
//! take longer, a round trip is the least time between two cuts and between two raises. It counts
//! time only, not bytes.

use std::time::{Duration, Instant};

/// What a port carries, in bytes a second: nobody is limited to more.
const PORT_RATE: u64 = 12_500_000_000;
/// No queue pair is slowed down below this, in bytes a second.
const LEAST_RATE: u64 = 500_000;
/// Least time between two cuts: notifications that come sooner tell of the same queue.
const CUT_PERIOD: Duration = Duration::from_micros(50);
/// Least time between two raises.
const RAISE_PERIOD: Duration = Duration::from_micros(300);
/// Raises that go back half way to the rate before the cut.
const BACK_STEPS: u32 = 5;
/// Raises after those that add [`ADDED_RATE`] each, before they grow.
const STEADY_STEPS: u32 = 5;
/// What a raise adds, in bytes a second, and each of the growing ones more than the one before.
const ADDED_RATE: u64 = 1_000_000;
/// After so many periods without a notification nothing is left of it.
const FORGOTTEN: u32 = 256;
/// The share of periods with a notification is counted in this many parts.
const WHOLE: u64 = 1 << 16;
/// Weight of the latest period in that share: one in so many.
const WEIGHT: u64 = 16;
/// What leaves at once, where the rate is high: a train.
const BURST_BYTES: u64 = 64 << 10;
/// What leaves at once, where it is low: what leaves in this time.
const BURST: Duration = Duration::from_micros(200);

const NANOS: u64 = 1_000_000_000;

/// The limit on what a queue pair sends, if there is one: apart from the queue pair, since few ever
/// have one. Where there is no memory for it, nothing is limited.
#[derive(Debug, Default)]
pub(crate) struct ReactionPoint(Vec<Limit>);

#[derive(Debug)]
struct Limit {
    /// Bytes a second now.
    rate: u64,
    /// Where the rate goes back to.
    target: u64,
    /// Share of late periods with a notification, of [`WHOLE`].
    share: u64,
    cut_at: Instant,
    raised_at: Instant,
    raises: u32,
    /// When all that was sent would have left at that rate.
    free_at: Instant,
}

impl ReactionPoint {
    /// The peer tells of congestion. `sending` is what the queue pair sent so far, in bytes a
    /// second, and `round_trip` how long a round trip takes, where they are known.
    pub(crate) fn notified(
        &mut self,
        now: Instant,
        sending: Option<u64>,
        round_trip: Option<Duration>,
    ) {
        self.catch_up(now, round_trip);
        let period = CUT_PERIOD.max(round_trip.unwrap_or_default());
        match self.0.first_mut() {
            Some(limit) if now.saturating_duration_since(limit.cut_at) >= period => {
                limit.cut(now, period);
            }
            Some(_) => {}
            None => {
                let mut limit = Limit::new(sending.unwrap_or(PORT_RATE), now);
                limit.cut(now, period);
                if self.0.try_reserve_exact(1).is_ok() {
                    self.0.push(limit);
                }
            }
        }
    }

    /// Takes `bytes` that are to leave, or says when to ask again.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        bytes: u64,
        round_trip: Option<Duration>,
    ) -> Result<(), Instant> {
        self.catch_up(now, round_trip);
        match self.0.first_mut() {
            Some(limit) => limit.take(now, bytes),
            None => Ok(()),
        }
    }

    /// Whether something is held back.
    pub(crate) fn limits(&self) -> bool {
        !self.0.is_empty()
    }

    /// Bytes a second that may leave; `None` if nothing limits them.
    #[cfg(test)]
    fn rate(&self) -> Option<u64> {
        self.0.first().map(|limit| limit.rate)
    }

    /// Lets the time until `now` have its effect.
    fn catch_up(&mut self, now: Instant, round_trip: Option<Duration>) {
        if let Some(limit) = self.0.first_mut()
            && limit.ends_by(now, round_trip.unwrap_or_default())
        {
            self.0 = Vec::new();
        }
    }
}

/// How often `period` fits between `since` and `now`, and when it did last.
fn periods(since: Instant, now: Instant, period: Duration) -> (u32, Instant) {
    let gone = now.saturating_duration_since(since).as_nanos() / period.as_nanos().max(1);
    let count = u32::try_from(gone).unwrap_or(u32::MAX);
    (count, since.checked_add(period.saturating_mul(count)).unwrap_or(now))
}

impl Limit {
    fn new(rate: u64, now: Instant) -> Limit {
        Limit {
            rate: rate.clamp(LEAST_RATE, PORT_RATE),
            target: PORT_RATE,
            share: WHOLE,
            cut_at: now,
            raised_at: now,
            raises: 0,
            free_at: now,
        }
    }

    /// Lowers the rate; `period` is the least time between two cuts.
    fn cut(&mut self, now: Instant, period: Duration) {
        let (passed, _) = periods(self.cut_at, now, period);
        for _ in 1..passed.min(FORGOTTEN) {
            self.share -= self.share / WEIGHT;
        }
        self.target = self.rate;
        self.rate = (self.rate - self.rate * self.share / WHOLE / 2).max(LEAST_RATE);
        self.share += (WHOLE - self.share) / WEIGHT;
        (self.cut_at, self.raised_at) = (now, now);
        self.raises = 0;
    }

    /// Follows the time without notifications; answers whether they are forgotten.
    fn ends_by(&mut self, now: Instant, round_trip: Duration) -> bool {
        let (raised, raised_at) = periods(self.raised_at, now, RAISE_PERIOD.max(round_trip));
        if raised > FORGOTTEN {
            return true;
        }
        (0..raised).for_each(|_| self.raise());
        self.raised_at = raised_at;
        self.rate >= PORT_RATE
    }

    fn raise(&mut self) {
        self.raises = self.raises.saturating_add(1);
        let probing = self.raises.saturating_sub(BACK_STEPS);
        if probing > 0 {
            let growing = probing.saturating_sub(STEADY_STEPS);
            self.target += ADDED_RATE * (1 + u64::from(growing));
        }
        self.target = self.target.min(PORT_RATE);
        self.rate = (self.rate + self.target).div_ceil(2);
    }

    fn take(&mut self, now: Instant, bytes: u64) -> Result<(), Instant> {
        let takes = |bytes: u64| Duration::from_nanos(bytes * NANOS / self.rate);
        let ahead = self.free_at.saturating_duration_since(now);
        // What is over at once may leave in one train; then all of it has to have left.
        if !ahead.is_zero() && ahead + takes(bytes) > BURST.min(takes(BURST_BYTES)) {
            return Err(self.free_at);
        }
        self.free_at = self.free_at.max(now) + takes(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Option<Duration> = Some(Duration::from_micros(20));

    /// Bytes that leave between `from` and `until`, in packets of 4 KiB.
    fn sent(pace: &mut ReactionPoint, from: Instant, until: Instant) -> u64 {
        let (mut now, mut sent) = (from, 0);
        while now < until {
            match pace.take(now, 4096, RTT) {
                Ok(()) => sent += 4096,
                Err(at) => {
                    assert!(at > now, "it has to be asked later");
                    now = at;
                }
            }
        }
        sent
    }

    #[test]
    fn without_a_notification_nothing_is_held_back() {
        let mut pace = ReactionPoint::default();
        let now = Instant::now();
        assert!((0..10_000).all(|_| pace.take(now, 1 << 20, None) == Ok(())));
    }

    #[test]
    fn the_first_notification_halves_what_was_sent_and_the_next_ones_wait() {
        let mut pace = ReactionPoint::default();
        let now = Instant::now();
        pace.notified(now, Some(1_000_000_000), RTT);
        assert_eq!(pace.rate(), Some(500_000_000));
        pace.notified(now + CUT_PERIOD / 2, None, RTT);
        assert_eq!(pace.rate(), Some(500_000_000), "the same queue");
        pace.notified(now + CUT_PERIOD, None, RTT);
        assert!(pace.rate().unwrap() < 270_000_000);
        let slow = Some(Duration::from_millis(2));
        pace.notified(now + 2 * CUT_PERIOD, None, slow);
        assert!(pace.rate().unwrap() > 200_000_000, "a round trip has to pass");
    }

    #[test]
    fn as_much_leaves_as_the_rate_says() {
        for rate in [4_000_000, 100_000_000, 2_000_000_000] {
            let mut pace = ReactionPoint::default();
            let now = Instant::now();
            pace.notified(now, Some(2 * rate), RTT);
            let time = RAISE_PERIOD - Duration::from_nanos(1);
            let bytes = sent(&mut pace, now, now + time);
            let least = rate * time.as_nanos() as u64 / NANOS;
            assert!((least..least + BURST_BYTES + 8192).contains(&bytes), "{rate}: {bytes}");
        }
    }

    #[test]
    fn it_goes_back_and_then_beyond_and_ends() {
        let mut pace = ReactionPoint::default();
        let mut now = Instant::now();
        pace.notified(now, Some(1_000_000_000), RTT);
        let mut last = 500_000_000;
        for step in 0.. {
            now += RAISE_PERIOD;
            let _ = pace.take(now, 0, RTT);
            let Some(rate) = pace.rate() else { break };
            assert!(rate > last && step < FORGOTTEN, "{step}: {rate}");
            if step < BACK_STEPS {
                assert!(rate < 1_000_000_000);
            }
            last = rate;
        }
        assert!(last > 1_500_000_000, "{last}");
    }

    #[test]
    fn a_stream_of_notifications_leaves_the_least_rate() {
        let mut pace = ReactionPoint::default();
        let mut now = Instant::now();
        for _ in 0..1000 {
            pace.notified(now, None, None);
            now += CUT_PERIOD;
        }
        assert_eq!(pace.rate(), Some(LEAST_RATE));
        assert_eq!(pace.take(now + Duration::from_secs(1000), 1 << 30, None), Ok(()));
        assert_eq!(pace.rate(), None, "long ago");
    }
}
