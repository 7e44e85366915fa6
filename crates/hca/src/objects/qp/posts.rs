//! Posts of a program in a row: each right behind the one before, without a look at completions, so
//! that nobody can have waited for what one of them did. Who posts so is served by packets that
//! share their way rather than by one call to the system each.

use std::time::{Duration, Instant};

/// How soon a post is right behind one of packets, from its beginning, and one of bytes that went
/// directly, from its end: the peer's answer to that takes longer.
const BEHIND_PACKETS: Duration = Duration::from_micros(5);
const BEHIND_BYTES: Duration = Duration::from_nanos(500);

/// The latest posts.
#[derive(Default)]
pub(super) struct Posts {
    /// How often completions had been asked for at the latest.
    polls: u32,
    in_a_row: u32,
    /// Until when the next one is right behind.
    until: Option<Instant>,
}

impl Posts {
    /// The program posts `now`; its completions have been asked for so often. Answers how many
    /// posts this one is right behind, one after the other.
    pub(super) fn note(&mut self, polls: u32, now: Instant) -> u32 {
        let is_behind = polls == self.polls && self.until.is_some_and(|until| now < until);
        let in_a_row = if is_behind { self.in_a_row.saturating_add(1) } else { 0 };
        *self = Posts { polls, in_a_row, until: Some(now + BEHIND_PACKETS) };
        in_a_row
    }

    /// The program posts what nothing else is under way with; nobody knows when.
    pub(super) fn note_alone(&mut self, polls: u32) {
        *self = Posts { polls, ..Posts::default() };
    }

    /// What was posted last had gone directly at `ended`.
    pub(super) fn went_directly(&mut self, ended: Instant) {
        self.until = Some(ended + BEHIND_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: Duration = Duration::from_micros(2);

    /// Posts that go directly, `gap` after the end of the one before; `polls` tells of each how
    /// often completions had been asked for.
    fn directly(gap: Duration, polls: impl Fn(u32) -> u32) -> u32 {
        let (mut posts, mut now, mut in_a_row) = (Posts::default(), Instant::now(), 0);
        for post in 0..100 {
            in_a_row = posts.note(polls(post), now);
            posts.went_directly(now + CALL);
            now += CALL + gap;
        }
        in_a_row
    }

    #[test]
    fn whoever_asks_for_each_completion_posts_nothing_in_a_row() {
        assert_eq!(directly(Duration::from_nanos(100), |post| post), 0);
        assert_eq!(directly(Duration::from_nanos(100), |_| 0), 99);
        assert!(directly(Duration::from_nanos(100), |post| post / 64) < 64);
    }

    #[test]
    fn whoever_waits_for_the_peers_memory_does_not_either() {
        assert_eq!(directly(CALL, |_| 0), 0);
        // Once packets are used, an answer takes no less.
        let (mut posts, mut now) = (Posts::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(posts.note(0, now), 0);
            now += BEHIND_PACKETS;
        }
        now -= Duration::from_nanos(1);
        assert_eq!(posts.note(0, now), 1);
    }
}
