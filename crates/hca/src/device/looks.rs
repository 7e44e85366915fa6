//! When a program that polls looks at the sockets, where packets come by rings as well: such a look
//! costs calls to the system, and as much as some ten polls that find nothing.
//!
//! As long as packets come from the wire it looks every [`SOON`] polls; while none do, ever more
//! seldom, so slowly that the first that comes again is late by a small part of the time that was
//! waited for it.

use std::time::Instant;

/// Polls between two looks while packets come from the wire.
const SOON: u32 = 32;
/// Polls between two looks when none has come for a while: some 50 µs if they find nothing.
const SELDOM: u32 = 512;
/// The same as a time, where polls take longer.
const LONG_NS: u64 = 100_000;
/// Each look that finds nothing makes the time to the next longer by this part of it.
const GROWTH: u32 = 8;
/// Polls that find nothing in the rings and take as long as one that looks at the sockets.
const POLLS_A_LOOK: u32 = 8;
/// Polls in vain after each of which the clock is read: the engine's thread is told that the
/// program is at it, and timers may have come due.
const CLOCK: u32 = 16;
/// Turns of short messages that one reading of the clock serves: some microseconds, where a program
/// that polls is found polling for some ten.
const TURNS_A_READING: u32 = 4;

/// Polls that are counted, and what they lead to.
pub(super) struct Looks {
    /// Polls since the last look.
    polls: u32,
    /// Polls between two.
    patience: u32,
    /// Polls since a packet came by a ring, or by the wire where there is none, or since others
    /// ran: as many as find nothing in the rings in the same time.
    quiet: u32,
    /// There is no ring to look at.
    by_wire_alone: bool,
    /// When the last look was, and the clock as it was read last, nanoseconds after the device's
    /// epoch.
    last_ns: u64,
    now_ns: u64,
    /// The reading that turns of short messages go by, and how many more may.
    reading: Option<(Instant, u64)>,
    turns_left: u32,
}

impl Looks {
    pub(super) fn new() -> Looks {
        let (polls, quiet, last_ns, now_ns) = (0, 0, 0, 0);
        let (reading, turns_left) = (None, 0);
        let patience = SOON;
        Looks { polls, patience, quiet, by_wire_alone: true, last_ns, now_ns, reading, turns_left }
    }

    /// Counts a poll; whether it has to look.
    pub(super) fn are_due(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.quiet = self.quiet.saturating_add(1);
        self.by_wire_alone = false;
        self.polls >= self.patience || self.let_others_run()
    }

    /// Whether a poll that found nothing reads the clock.
    pub(super) fn read_the_clock(&self) -> bool {
        self.polls.is_multiple_of(CLOCK)
    }

    /// Counts a poll that looks, and would look each time.
    pub(super) fn looks_always(&mut self) {
        self.quiet = self.quiet.saturating_add(POLLS_A_LOOK);
        self.by_wire_alone = true;
    }

    /// Whether each poll looks.
    pub(super) fn are_frequent(&self) -> bool {
        self.by_wire_alone
    }

    /// Whether so many polls have found nothing that others may want this CPU.
    pub(super) fn let_others_run(&self) -> bool {
        self.quiet >= SELDOM
    }

    /// They run.
    pub(super) fn others_ran(&mut self) {
        self.quiet = 0;
    }

    /// A packet came by a ring.
    pub(super) fn came_by_ring(&mut self) {
        self.quiet = 0;
    }

    /// The clock was read between turns: the next ones go by that.
    pub(super) fn note_reading(&mut self, reading: (Instant, u64)) {
        (self.reading, self.turns_left) = (Some(reading), TURNS_A_READING - 1);
        self.note(reading.1);
    }

    /// The next turn reads the clock.
    pub(super) fn forget_the_time(&mut self) {
        self.turns_left = 0;
    }

    /// The clock was read.
    pub(super) fn note(&mut self, now_ns: u64) {
        self.now_ns = self.now_ns.max(now_ns);
    }

    /// Whether the next turn of short messages goes by a reading that there is.
    pub(super) fn spare_the_clock(&self) -> bool {
        self.turns_left > 0
    }

    /// The time of such a turn, which `read` reads if need be.
    pub(super) fn time(&mut self, read: impl FnOnce() -> (Instant, u64)) -> (Instant, u64) {
        match self.reading.filter(|_| self.turns_left > 0) {
            Some(reading) => {
                self.turns_left -= 1;
                reading
            }
            None => {
                self.turns_left = TURNS_A_READING - 1;
                *self.reading.insert(read())
            }
        }
    }

    /// The clock as it was read last.
    pub(super) fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Whether it has to look for the time that has passed.
    pub(super) fn were_long_ago(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.last_ns) >= LONG_NS
    }

    /// There was a look, and nothing came from the wire.
    pub(super) fn looked_in_vain(&mut self, now_ns: u64) {
        (self.polls, self.last_ns) = (0, now_ns);
        self.patience = (self.patience + self.patience / GROWTH).min(SELDOM);
    }

    /// Something came from the wire.
    pub(super) fn came_from_wire(&mut self, now_ns: u64) {
        (self.polls, self.last_ns, self.patience) = (0, now_ns, SOON);
        if self.by_wire_alone {
            self.quiet = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls until the next look that is due.
    fn polls(looks: &mut Looks) -> u32 {
        let polls = (1..).find(|_| looks.are_due());
        polls.expect("a look")
    }

    #[test]
    fn looks_are_seldom_while_nothing_comes_and_soon_once_something_does() {
        let mut looks = Looks::new();
        let (mut waited, mut last) = (0, 0);
        while last < SELDOM {
            last = polls(&mut looks);
            looks.came_by_ring();
            // What came meanwhile is late by no more than a small part of what was waited for.
            assert!(last <= SOON + waited / GROWTH, "{last} polls after {waited}");
            waited += last;
            looks.looked_in_vain(0);
        }
        assert_eq!(polls(&mut looks), SELDOM);
        looks.others_ran();
        looks.came_from_wire(0);
        assert_eq!(polls(&mut looks), SOON);
    }

    #[test]
    fn others_run_after_many_polls_in_vain() {
        let mut looks = Looks::new();
        for round in 1..=3 {
            let mut since = 0;
            while !looks.let_others_run() {
                since += 1;
                if looks.are_due() {
                    looks.came_from_wire(0);
                }
            }
            assert_eq!(since, SELDOM, "round {round}");
            looks.others_ran();
        }
        // The last ring goes amid the count.
        for _ in 0..100 {
            looks.are_due();
        }
        for wanted in [SELDOM - 100, SELDOM] {
            let looked = (1..).find(|_| {
                looks.looks_always();
                looks.let_others_run()
            });
            assert_eq!(looked, Some(wanted.div_ceil(POLLS_A_LOOK)));
            looks.others_ran();
        }
        for packet in [Looks::came_by_ring, |looks: &mut Looks| looks.came_from_wire(0)] {
            (0..SELDOM).for_each(|_| looks.looks_always());
            packet(&mut looks);
            assert!(!looks.let_others_run());
        }
    }

    #[test]
    fn a_few_turns_go_by_one_reading_of_the_clock() {
        let (mut looks, start) = (Looks::new(), Instant::now());
        let mut readings = 0;
        for turn in 0..3 * TURNS_A_READING {
            assert_eq!(looks.spare_the_clock(), turn % TURNS_A_READING != 0);
            let (_, at) = looks.time(|| {
                readings += 1;
                (start, readings)
            });
            assert_eq!(at, u64::from(turn / TURNS_A_READING) + 1);
        }
        assert!(!looks.spare_the_clock());
        looks.note_reading((start, 7));
        assert_eq!(looks.time(|| unreachable!()), (start, 7));
        looks.forget_the_time();
        assert_eq!(looks.time(|| (start, 8)), (start, 8));
        looks.note(7);
        looks.note(3);
        assert_eq!(looks.now_ns(), 7, "the clock does not go back");
    }

    #[test]
    fn a_long_time_counts_as_many_polls() {
        let mut looks = Looks::new();
        looks.looked_in_vain(1_000_000);
        assert!(!looks.were_long_ago(1_000_000 + LONG_NS - 1));
        assert!(looks.were_long_ago(1_000_000 + LONG_NS));
    }
}
