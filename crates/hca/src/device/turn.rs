//! One turn of progress: when it is over, and how much it worked.
//!
//! A turn's length is what its thread computed, by the thread's CPU clock: while others had the CPU
//! the turn was not to blame. That clock costs a system call where the wall's costs none. So it is
//! read at most every [`STALE`], and at a turn's end only if the wall's says that the turn may have
//! been the longest.

use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// How long a turn takes up work. One visit may begin at its very end.
const LIMIT: Duration = Duration::from_micros(400);
/// Age up to which a reading of the CPU clock serves as a turn's beginning; what a turn is said to
/// have worked is at most this much too long.
const STALE: Duration = Duration::from_micros(100);

/// What a turn came to.
pub(super) struct Done {
    /// Payload that it took.
    pub(super) bytes: usize,
    /// Packets that came by rings.
    pub(super) by_ring: usize,
    /// When it was over, in nanoseconds of the device's clock; of a brief one, when it began: to
    /// read the clock takes a good part of what it does.
    pub(super) ended_ns: u64,
}

/// The CPU clock as it was read.
#[derive(Clone, Copy)]
struct Reading {
    cpu: Duration,
    /// By the wall's clock.
    stale_at: Instant,
}

thread_local! {
    /// The thread's latest.
    static LATEST: Cell<Option<Reading>> = const { Cell::new(None) };
}

/// A turn of the calling thread. One reading of the clock serves all of it, but for the question
/// whether its time is over.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) now: Instant,
    /// A thread of the program's takes it, which polls.
    pub(super) polled: bool,
    /// The thread's CPU time at its beginning, or a little before.
    cpu: Duration,
}

impl Turn {
    pub(crate) fn begin(polled: bool) -> Turn {
        let now = Instant::now();
        let fresh = |latest: &Reading| now < latest.stale_at;
        let latest = LATEST.get().filter(fresh).unwrap_or_else(|| {
            let reading = Reading { stale_at: now + STALE, cpu: cpu_time() };
            LATEST.set(Some(reading));
            reading
        });
        Turn { now, polled, cpu: latest.cpu }
    }

    pub(crate) fn is_over(self) -> bool {
        self.now.elapsed() >= LIMIT
    }

    /// How long it worked until `ended`, just now, if that is more than `longest`.
    pub(crate) fn worked_longer(self, ended: Instant, longest: Duration) -> Option<Duration> {
        let took = ended.saturating_duration_since(self.now);
        if took <= longest {
            return None;
        }
        // Of a short turn the wall's clock knows better than a reading from before it.
        let worked = took.min(cpu_time().saturating_sub(self.cpu));
        (worked > longest).then_some(worked)
    }
}

/// CPU time of the calling thread.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compute(time: Duration) {
        let begun = cpu_time();
        while cpu_time() - begun < time {}
    }

    #[test]
    fn work_counts_and_waiting_does_not() {
        let turn = Turn::begin(false);
        compute(Duration::from_millis(3));
        std::thread::sleep(Duration::from_millis(50));
        let worked = turn.worked_longer(Instant::now(), Duration::ZERO).unwrap();
        assert!(
            worked >= Duration::from_millis(3) && worked < Duration::from_millis(50),
            "{worked:?}"
        );
        assert!(turn.is_over());
    }

    #[test]
    fn work_before_a_turn_is_not_the_turns() {
        Turn::begin(false);
        compute(Duration::from_millis(3));
        let turn = Turn::begin(false);
        let worked = turn.worked_longer(Instant::now(), Duration::ZERO).unwrap_or_default();
        assert!(worked <= Duration::from_millis(1), "{worked:?}");
    }

    #[test]
    fn a_turn_shorter_than_the_longest_is_none() {
        let turn = Turn::begin(false);
        compute(Duration::from_millis(1));
        assert_eq!(turn.worked_longer(Instant::now(), Duration::from_secs(60)), None);
    }
}
