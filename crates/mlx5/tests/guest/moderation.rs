//! Events of completion queues: at once, or after a time or a number of completions.

use crate::support::numbers::{REQUEST, WRITE};
use crate::support::verbs::{
    ALLOC_PD, Cq, Eq, Qp, cq, eq, eq_for, inline, physical_key, qp, remote,
};
use crate::support::{Driver, field};
use std::time::{Duration, Instant};

const MODIFY_CQ: u16 = 0x403;
const QUERY_CQ: u16 = 0x402;
const PERIOD: Duration = Duration::from_micros(4000);
const COMPLETIONS: u64 = 1;

struct Moderated {
    driver: Driver,
    events: Eq,
    cq: Cq,
    one: Qp,
    key: u32,
    page: u64,
}

fn moderated() -> Moderated {
    let mut driver = Driver::new("moderated");
    eq(&mut driver, 0);
    let events = eq_for(&mut driver, COMPLETIONS, 6, 1);
    let cq = cq(&mut driver, events.number);
    let pd = driver.create(ALLOC_PD, vec![0; 16]);
    let key = physical_key(&mut driver, pd);
    let [one, two] = [(); 2].map(|()| qp(&mut driver, 0, pd, &cq));
    let lid = driver.lid;
    one.connect(&mut driver, lid, two.number);
    two.connect(&mut driver, lid, one.number);
    let page = driver.page();
    Moderated { driver, events, cq, one, key, page }
}

impl Moderated {
    /// Period in microseconds and count, and how the period begins (1: with each completion).
    fn set(&mut self, period: u64, count: u64, mode: u64) {
        let mut input = vec![0; 0x110];
        field(&mut input, 0x48, 24, self.cq.number.into());
        field(&mut input, 0x60, 32, 1 << 0 | 1 << 1 | 1 << 4);
        for (bit, width, value) in [(0xf, 2, mode), (0x84, 12, period), (0x90, 16, count)] {
            field(&mut input, 0x80 + bit, width, value);
        }
        self.driver.command(MODIFY_CQ, input, 16);
    }

    /// One completion comes and is read.
    fn complete(&mut self) {
        let (to, key) = (self.page, self.key);
        self.one.post(&self.driver, WRITE, 0, &[&remote(to, key), &inline(b"!")]);
        self.cq.expect(&self.driver, REQUEST);
    }

    fn arm(&self) {
        self.driver.arm_cq(self.cq.number, self.cq.consumed());
    }

    /// Waits for the event.
    fn event(&mut self) -> Instant {
        let driver = &self.driver;
        driver.poll("an event", || self.events.poll(driver));
        self.events.update(driver);
        Instant::now()
    }
}

#[test]
fn events_wait_for_a_time_or_a_number_of_completions() {
    let mut it = moderated();
    it.set(PERIOD.as_micros() as u64, 3, 0);
    // It was quiet before: the first raises an event at once, the next not before the period ends.
    it.arm();
    let begun = Instant::now();
    it.complete();
    it.event();
    it.arm();
    it.complete();
    assert!(it.event() - begun >= PERIOD);
    // Three together raise an event sooner, unless this thread does not run for so long.
    let soon = (0..100).any(|_| {
        it.arm();
        (0..3).for_each(|_| it.complete());
        let before = it.event();
        it.arm();
        (0..3).for_each(|_| it.complete());
        it.event() - before < PERIOD
    });
    assert!(soon, "only the time counts");
    assert!(it.events.poll(&it.driver).is_none());
    // Nothing waits once it is switched off.
    it.set(0, 0, 0);
    for _ in 0..3 {
        it.arm();
        it.complete();
        it.event();
    }
}

#[test]
fn the_period_begins_with_each_completion_if_asked() {
    let mut it = moderated();
    it.set(PERIOD.as_micros() as u64, 100, 1);
    it.arm();
    let begun = Instant::now();
    it.complete();
    assert!(it.event() - begun >= PERIOD);
    let mut input = vec![0; 16];
    field(&mut input, 0x48, 24, it.cq.number.into());
    let context = &it.driver.command(QUERY_CQ, input, 0x110)[0x10..];
    assert_eq!(context[0x10..0x14], (4000u32 << 16 | 100).to_be_bytes());
    assert_eq!(context[2] >> 7, 1);
    // What waits is reported at once when the driver wants no moderation any more.
    it.arm();
    it.complete();
    it.set(0, 0, 0);
    it.event();
}

#[test]
fn what_waits_is_not_reported_after_the_queue_has_gone() {
    let goes = || {
        let mut it = moderated();
        it.set(PERIOD.as_micros() as u64, 100, 1);
        it.arm();
        let begun = Instant::now();
        it.complete();
        it.driver.function.reset();
        let in_time = begun.elapsed() < PERIOD;
        while begun.elapsed() < 2 * PERIOD {
            std::thread::yield_now();
        }
        in_time.then(|| it.events.poll(&it.driver).is_none())
    };
    let silent = std::iter::repeat_with(goes).take(100).flatten().next();
    assert_eq!(silent, Some(true), "`None`: it was reported before, each time");
}

#[test]
fn other_changes_are_refused() {
    let mut it = moderated();
    let mut input = vec![0; 0x110];
    field(&mut input, 0x48, 24, it.cq.number.into());
    field(&mut input, 0x60, 32, 1 << 2);
    assert_eq!(it.driver.status(MODIFY_CQ, input), 3);
}
