//! Whether the program answers messages at once, as those do that send one to and fro.
//!
//! The acknowledge of such a message can leave with the answer, in one train, where by itself it
//! costs a call to the system between the message and its answer, and often wakes a thread of the
//! peer's. So it waits where most of the messages before were answered at once: until the program's
//! next post or poll. Who computes instead, after it has polled, is found out by a thread that may
//! sleep: who was waited for in vain for long has to answer twice as many messages at once before
//! it is waited for again.

use std::time::{Duration, Instant};

/// How soon after a message its answer is posted, and how long an acknowledge waits for it.
const PATIENCE: Duration = Duration::from_micros(50);
/// Who takes longer has not only been kept from running for a moment.
const LONG: Duration = Duration::from_micros(250);
/// Messages answered at once before an acknowledge waits: at first, and at most.
const FIRST_NEEDED: u16 = 64;
const MOST_NEEDED: u16 = 1 << 15;
/// So many that were waited for, and not in vain, make it half as many again.
const FORGIVEN: u16 = 4096;

/// The latest messages, and what the program did then.
pub(crate) struct Replies {
    /// When the latest message came, if it is not answered.
    came: Option<Instant>,
    /// Messages answered at once, one after the other; half of them once one is not quite.
    in_a_row: u16,
    needed: u16,
    /// How many were waited for since that changed.
    met: u16,
    /// The acknowledge of the latest waits.
    waits: bool,
}

impl Default for Replies {
    fn default() -> Replies {
        Replies { came: None, in_a_row: 0, needed: FIRST_NEEDED, met: 0, waits: false }
    }
}

impl Replies {
    /// A message came; whether its acknowledge waits from now on.
    pub(crate) fn came(&mut self, now: Instant) -> bool {
        if self.came.is_some() {
            self.give_up(now);
        }
        self.came = Some(now);
        self.waits = self.in_a_row >= self.needed;
        self.waits
    }

    /// The program sends.
    pub(crate) fn answered(&mut self, now: Instant) {
        let Some(came) = self.came else { return };
        let after = now.saturating_duration_since(came);
        if after >= LONG {
            return self.give_up(now);
        }
        self.in_a_row = match after <= PATIENCE {
            true => self.in_a_row.saturating_add(1),
            false => self.in_a_row / 2,
        };
        self.met += u16::from(self.waits);
        if self.met == FORGIVEN {
            (self.needed, self.met) = ((self.needed / 2).max(FIRST_NEEDED), 0);
        }
        (self.came, self.waits) = (None, false);
    }

    /// It does not, or nobody knows.
    pub(crate) fn give_up(&mut self, now: Instant) {
        let is_long = |came| now.saturating_duration_since(came) >= LONG;
        if self.waits && self.came.is_some_and(is_long) {
            (self.needed, self.met) = (self.needed.saturating_mul(2).min(MOST_NEEDED), 0);
        }
        (self.came, self.in_a_row, self.waits) = (None, 0, false);
    }

    /// Whether an acknowledge waits, and how long.
    pub(crate) fn waits_until(&self) -> Option<Instant> {
        self.came.filter(|_| self.waits).map(|came| came + PATIENCE)
    }

    /// Whether an acknowledge waits.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(2);

    /// Messages that are answered `after` they came, until the acknowledge of one waits: how many
    /// did not, up to `most`.
    fn messages(replies: &mut Replies, now: &mut Instant, after: Duration, most: u32) -> u32 {
        for message in 0..most {
            *now += Duration::from_millis(1);
            if replies.came(*now) {
                return message;
            }
            *now += after;
            replies.answered(*now);
        }
        most
    }

    #[test]
    fn who_answers_at_once_is_waited_for_as_long_as_it_does() {
        let (mut replies, mut now) = (Replies::default(), Instant::now());
        assert_eq!(messages(&mut replies, &mut now, SOON, 1000), 64);
        assert_eq!(replies.waits_until(), Some(now + PATIENCE));
        for message in 0..100_000 {
            // Now and then it is kept from running for a moment.
            let after = if message % 1000 == 999 { PATIENCE * 2 } else { SOON };
            replies.answered(now + after);
            assert_eq!(replies.waits_until(), None);
            now += after;
            assert!(replies.came(now));
        }
        let (mut late, mut computing) = (Replies::default(), Replies::default());
        assert_eq!(messages(&mut late, &mut now, PATIENCE * 2, 1000), 1000);
        assert_eq!(messages(&mut computing, &mut now, LONG, 1000), 1000);
    }

    #[test]
    fn each_that_is_waited_for_in_vain_makes_the_next_rarer() {
        let (mut replies, mut now) = (Replies::default(), Instant::now());
        let mut needed = 64;
        for round in 0..12 {
            assert_eq!(messages(&mut replies, &mut now, SOON, u32::MAX), needed);
            match round % 2 == 0 {
                true => replies.give_up(now + LONG),
                false => replies.answered(now + LONG),
            }
            assert!(!replies.has_waiting());
            needed = (needed * 2).min(1 << 15);
        }
        // Until some thousand were not in vain.
        assert_eq!(messages(&mut replies, &mut now, SOON, u32::MAX), needed);
        for _ in 0..4096 {
            replies.answered(now);
            assert!(replies.came(now));
        }
        replies.give_up(now);
        assert_eq!(messages(&mut replies, &mut now, SOON, u32::MAX), needed / 2);
    }

    #[test]
    fn who_polls_instead_is_only_watched_anew() {
        let (mut replies, mut now) = (Replies::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(messages(&mut replies, &mut now, SOON, u32::MAX), 64);
            replies.give_up(now + LONG - Duration::from_nanos(1));
        }
        // So is one to whom another message comes before it has sent anything.
        assert_eq!(messages(&mut replies, &mut now, SOON, 63), 63);
        assert!(!replies.came(now) && !replies.came(now));
        replies.answered(now + LONG);
        assert_eq!(messages(&mut replies, &mut now, SOON, u32::MAX), 64);
    }
}
