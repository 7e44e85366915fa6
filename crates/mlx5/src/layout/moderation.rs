//! When a completion queue's event is due (PRM "Interrupt Moderation"; `cq_period`, `cq_max_count`,
//! `cq_period_mode` of `cqc`): a driver that has much to do wants one event for several
//! completions, and waits for the last of them a limited time.
//!
//! Knows no clock: instants go in, and when to look again comes out.

use crate::layout::bits::Field;
use crate::layout::context::Context;
use std::time::{Duration, Instant};

// Fields of the context.
pub(crate) const PERIOD_MODE: Field = Field::new(0xf, 2);
pub(crate) const PERIOD: Field = Field::new(0x84, 12);
pub(crate) const COUNT: Field = Field::new(0x90, 16);
/// The mode in which the period begins anew with each completion, not with the last event.
const FROM_COMPLETION: u64 = 1;

/// The moderation of one queue's events.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Moderation {
    /// Zero: events are raised at once.
    period: Duration,
    /// So many completions raise an event at once. Zero: each does.
    count: u32,
    from_completion: bool,
    /// Completions since the last event.
    waiting: u32,
    latest: Option<Instant>,
    told: Option<Instant>,
}

impl Moderation {
    /// As a context says, from now on.
    pub(crate) fn set(&mut self, context: &Context) {
        self.period = Duration::from_micros(context.get(PERIOD));
        self.count = context.get32(COUNT);
        self.from_completion = context.get(PERIOD_MODE) == FROM_COMPLETION;
    }

    /// Whether events may be raised late.
    pub(crate) fn is_on(&self) -> bool {
        !self.period.is_zero() && self.count != 0
    }

    /// A completion came.
    pub(crate) fn completed(&mut self, now: Instant) {
        self.waiting = self.waiting.saturating_add(1);
        self.latest = Some(now);
    }

    /// An event was raised.
    pub(crate) fn told(&mut self, now: Instant) {
        self.waiting = 0;
        self.told = Some(now);
    }

    /// When an event that is wanted is due; `None` is now.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        if !self.is_on() || self.waiting >= self.count {
            return None;
        }
        let begun = if self.from_completion { self.latest } else { self.told };
        begun.map(|begun| begun + self.period).filter(|due| *due > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moderation(period: u64, count: u64, mode: u64) -> Moderation {
        let mut context = Context::from(&[0; 64][..]);
        for (field, value) in [(PERIOD, period), (COUNT, count), (PERIOD_MODE, mode)] {
            context.set(field, value);
        }
        let mut moderation = Moderation::default();
        moderation.set(&context);
        moderation
    }

    #[test]
    fn the_count_or_the_period_since_the_last_event_is_waited_for() {
        let start = Instant::now();
        let us = |us| start + Duration::from_micros(us);
        let mut moderation = moderation(100, 3, 0);
        moderation.completed(us(0));
        assert_eq!(moderation.due(us(0)), None, "it was quiet before");
        moderation.told(us(0));
        moderation.completed(us(10));
        moderation.completed(us(20));
        assert_eq!(moderation.due(us(20)), Some(us(100)));
        assert_eq!(moderation.due(us(100)), None);
        moderation.completed(us(30));
        assert_eq!(moderation.due(us(30)), None, "three are enough");
    }

    #[test]
    fn the_period_may_begin_with_each_completion() {
        let start = Instant::now();
        let us = |us| start + Duration::from_micros(us);
        let mut moderation = moderation(100, 3, FROM_COMPLETION);
        moderation.completed(us(0));
        assert_eq!(moderation.due(us(0)), Some(us(100)));
        moderation.completed(us(90));
        assert_eq!(moderation.due(us(100)), Some(us(190)));
    }

    #[test]
    fn without_one_of_the_two_every_event_is_told_at_once() {
        let now = Instant::now();
        for (period, count) in [(0, 0), (0, 9), (9, 0)] {
            let mut moderation = moderation(period, count, 0);
            moderation.told(now);
            moderation.completed(now);
            assert!(!moderation.is_on() && moderation.due(now).is_none());
        }
    }
}
