//! Mirrors over a made-up address space: every page, fault and invalidation is the test's to say.

use super::*;
use crate::guard::Fault;
use crate::private::DevicePage;
use ranges::RANGES;
use std::collections::BTreeMap;
use std::time::Instant;

/// Addresses of [`Made`] are whole pages of this process' size.
fn page() -> u64 {
    page_size()
}

/// A made-up address space: what is mapped, whether for writing, and whether it is in memory.
#[derive(Default)]
struct Made {
    /// By page number: writable, resident.
    mapped: Mutex<BTreeMap<u64, (bool, bool)>>,
    /// Ranges that were asked for, in pages, and whether for writing.
    asked: Mutex<Vec<(u64, u64, bool)>>,
    /// Runs once inside the next fault, before its answer.
    amid: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Made {
    fn map(&self, pages: Range<u64>, writable: bool, resident: bool) {
        self.mapped.lock().unwrap().extend(pages.map(|p| (p, (writable, resident))));
    }

    fn unmap(&self, pages: Range<u64>) {
        self.mapped.lock().unwrap().retain(|p, _| !pages.contains(p));
    }

    fn asked(&self) -> Vec<(u64, u64, bool)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Pages for Made {
    fn fault(
        &self,
        range: &Range<u64>,
        write: bool,
        _: &mut dyn FnMut(DevicePage),
    ) -> Result<u64, Fault> {
        let pages = range.start / page()..range.end / page();
        self.asked.lock().unwrap().push((pages.start, pages.end, write));
        if let Some(amid) = self.amid.lock().unwrap().take() {
            amid();
        }
        let mut mapped = self.mapped.lock().unwrap();
        for number in pages {
            let (writable, resident) = mapped.get_mut(&number).ok_or(Fault)?;
            if write && !*writable {
                return Err(Fault);
            }
            *resident = true;
        }
        Ok(0)
    }

    fn to_host(&self, _: &Range<u64>) {
        panic!("nothing is in a device's memory");
    }

    fn resident(&self, range: &Range<u64>, found: &mut dyn FnMut(Range<u64>)) {
        for (number, (_, resident)) in self.mapped.lock().unwrap().iter() {
            let at = number * page();
            if *resident && range.contains(&at) {
                found(at..at + page());
            }
        }
    }
}

fn made() -> (Arc<Made>, Arc<Mirror>) {
    mirror(0..64, true)
}

fn mirror(pages: Range<u64>, writable: bool) -> (Arc<Made>, Arc<Mirror>) {
    let made = Arc::new(Made::default());
    made.map(pages.clone(), true, false);
    let mirror = Mirror::new(made.clone(), &bytes(pages), page(), writable, Box::new(|_| None));
    (made, mirror)
}

fn bytes(pages: Range<u64>) -> Range<u64> {
    pages.start * page()..pages.end * page()
}

fn reaches(mirror: &Mirror, pages: Range<u64>, write: bool) -> bool {
    mirror.enter().covers(&bytes(pages), write)
}

/// What the interposed calls do around `munmap`.
fn unmap(made: &Made, mirror: &Mirror, pages: Range<u64>) {
    Invalidate::invalidate(mirror, bytes(pages.clone()));
    made.unmap(pages.clone());
    mirror.invalidated(bytes(pages));
}

#[test]
fn nothing_is_reached_before_a_fault_and_everything_after_it() {
    let (made, mirror) = made();
    assert!(!reaches(&mirror, 3..4, false));
    mirror.fault(&(3 * page() + 5..4 * page() + 1), 0).unwrap();
    assert_eq!(made.asked(), [(3, 5, true)], "whole pages, for writing");
    assert!(reaches(&mirror, 3..5, true));
    assert!(!reaches(&mirror, 2..5, false));
    assert!(!reaches(&mirror, 3..6, false));
    let counts = mirror.counts();
    assert_eq!((counts.page_faults, counts.page_faults_handled), (2, 1));
}

#[test]
fn new_pages_at_the_same_place_are_faulted_in_anew() {
    let (made, mirror) = made();
    mirror.fault(&bytes(0..8), 0).unwrap();
    unmap(&made, &mirror, 2..4);
    assert!(!reaches(&mirror, 2..3, false));
    assert!(reaches(&mirror, 0..2, true) && reaches(&mirror, 4..8, true));
    assert_eq!(mirror.fault(&bytes(2..4), 0), Err(Fault), "nothing is mapped there");
    made.map(2..4, true, false);
    mirror.fault(&bytes(2..4), 0).unwrap();
    assert!(reaches(&mirror, 0..8, true));
    let expected = PagingCounts {
        page_faults: 10,
        page_faults_handled: 2,
        page_invalidations: 2,
        page_invalidations_handled: 1,
        page_prefetch: 0,
        ..PagingCounts::default()
    };
    assert_eq!(mirror.counts(), expected);
}

#[test]
fn read_only_pages_give_a_fault_to_who_may_write() {
    let (made, writable) = made();
    made.map(5..6, false, true);
    assert_eq!(writable.fault(&bytes(5..6), 0), Err(Fault));
    let readable = Mirror::new(made, &bytes(0..64), page(), false, Box::new(|_| None));
    readable.fault(&bytes(5..6), 0).unwrap();
    assert!(reaches(&readable, 5..6, false));
    assert!(!reaches(&readable, 5..6, true));
}

#[test]
fn what_follows_in_the_operation_comes_with_the_fault_if_it_can() {
    let (made, mirror) = made();
    mirror.fault(&bytes(0..1), 3 * page()).unwrap();
    assert_eq!(made.asked(), [(0, 4, true)]);
    made.unmap(12..13);
    mirror.fault(&bytes(10..11), 5 * page()).unwrap();
    assert_eq!(made.asked(), [(10, 16, true), (10, 11, true)]);
    assert!(reaches(&mirror, 10..11, true) && !reaches(&mirror, 11..12, true));
    mirror.fault(&bytes(63..64), u64::MAX).unwrap();
    assert_eq!(made.asked(), [(63, 64, true)], "not beyond the range");
    mirror.fault(&(20 * page()..20 * page() + 1), 2 * page() - 1).unwrap();
    assert_eq!(made.asked(), [(20, 22, true)], "not beyond the operation");
}

#[test]
fn outside_the_range_there_is_nothing() {
    let (_, mirror) = mirror(10..20, true);
    for pages in [9..10, 9..11, 19..21, 20..21] {
        assert_eq!(mirror.fault(&bytes(pages.clone()), 0), Err(Fault), "{pages:?}");
        assert_eq!(mirror.prefetch(&bytes(pages.clone()), Prefetch::NoFault), Err(Fault));
        assert!(!reaches(&mirror, pages, false));
    }
    assert_eq!(mirror.fault(&(0..u64::MAX), 0), Err(Fault));
}

#[test]
fn advice_maps_as_it_says() {
    let (made, mirror) = made();
    made.map(8..12, true, true);
    mirror.prefetch(&bytes(8..16), Prefetch::NoFault).unwrap();
    assert_eq!(made.asked(), [], "nothing may be faulted in");
    assert!(reaches(&mirror, 8..12, false) && !reaches(&mirror, 12..13, false));
    mirror.prefetch(&bytes(12..14), Prefetch::Read).unwrap();
    assert!(reaches(&mirror, 8..14, false) && !reaches(&mirror, 12..13, true));
    mirror.prefetch(&bytes(12..14), Prefetch::Write).unwrap();
    assert!(reaches(&mirror, 12..14, true));
    assert_eq!(made.asked(), [(12, 14, false), (12, 14, true)]);
    let counts = mirror.counts();
    assert_eq!((counts.page_prefetch, counts.page_faults), (4 + 2 + 2, 0));
    made.unmap(30..31);
    assert_eq!(mirror.prefetch(&bytes(29..32), Prefetch::Read), Err(Fault));
}

#[test]
fn a_snapshot_counts_nothing_and_faults_nothing() {
    let (made, mirror) = made();
    made.map(1..3, true, true);
    mirror.snapshot();
    assert!(reaches(&mirror, 1..3, false) && !reaches(&mirror, 0..1, false));
    assert_eq!(made.asked(), []);
    assert_eq!(mirror.counts(), PagingCounts::default());
}

#[test]
fn a_fault_that_an_invalidation_crossed_is_tried_again() {
    let (made, mirror) = made();
    let (other, its) = (mirror.clone(), made.clone());
    *made.amid.lock().unwrap() = Some(Box::new(move || {
        unmap(&its, &other, 5..6);
        its.map(5..6, true, false);
    }));
    mirror.fault(&bytes(4..8), 0).unwrap();
    assert_eq!(made.asked(), [(4, 8, true), (4, 8, true)]);
    assert_eq!(mirror.counts().page_faults, 4, "counted once");
}

#[test]
fn an_invalidation_elsewhere_does_not_disturb_a_fault() {
    let (made, mirror) = made();
    let (other, its) = (mirror.clone(), made.clone());
    *made.amid.lock().unwrap() = Some(Box::new(move || unmap(&its, &other, 20..21)));
    mirror.fault(&bytes(4..8), 0).unwrap();
    assert_eq!(made.asked(), [(4, 8, true)]);
}

#[test]
fn more_invalidations_than_are_remembered_count_as_everywhere() {
    let (made, mirror) = made();
    let (other, its) = (mirror.clone(), made.clone());
    *made.amid.lock().unwrap() = Some(Box::new(move || {
        (0..=RANGES).for_each(|_| unmap(&its, &other, 20..21));
    }));
    mirror.fault(&bytes(4..8), 0).unwrap();
    assert_eq!(made.asked().len(), 2);
}

#[test]
fn a_fault_waits_for_the_end_of_an_invalidation_in_progress() {
    let (made, mirror) = made();
    let ranges = (0..=RANGES as u64 + 1).map(|_| bytes(5..6));
    for range in ranges.clone() {
        Invalidate::invalidate(&*mirror, range);
    }
    made.unmap(5..6);
    std::thread::scope(|s| {
        let fault = s.spawn(|| while mirror.fault(&bytes(5..6), 0) == Ok(false) {});
        assert_eq!(made.asked(), [], "asked while the pages were going");
        made.map(5..6, true, false);
        for range in ranges {
            assert!(!reaches(&mirror, 5..6, false));
            mirror.invalidated(range);
        }
        fault.join().unwrap();
    });
    assert!(reaches(&mirror, 5..6, true));
}

#[test]
fn an_invalidation_waits_for_those_inside() {
    let (made, mirror) = made();
    mirror.fault(&bytes(0..1), 0).unwrap();
    let inside = mirror.enter();
    assert!(inside.covers(&bytes(0..1), true));
    let gone = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let unmapper = s.spawn(|| {
            unmap(&made, &mirror, 0..1);
            gone.store(true, SeqCst);
        });
        while inside.covers(&bytes(0..1), false) {
            std::thread::yield_now();
        }
        assert!(!gone.load(SeqCst), "went while a device was inside");
        drop(inside);
        unmapper.join().unwrap();
    });
}

#[test]
fn memory_found_gone_is_an_invalidation() {
    let (_, mirror) = made();
    mirror.fault(&bytes(0..4), 0).unwrap();
    mirror.found_gone(&bytes(1..2));
    assert!(!reaches(&mirror, 1..2, false) && reaches(&mirror, 2..4, true));
    assert_eq!(mirror.counts().page_invalidations, 1);
    mirror.fault(&bytes(1..2), 0).unwrap();
}

#[test]
fn large_granules_are_brought_in_whole() {
    let made = Arc::new(Made::default());
    made.map(0..64, true, false);
    made.map(20..23, true, true);
    made.map(24..28, true, true);
    let mirror = Mirror::new(made.clone(), &bytes(5..30), 4 * page(), true, Box::new(|_| None));
    assert_eq!(mirror.range(), bytes(4..32));
    mirror.snapshot();
    assert!(reaches(&mirror, 24..28, false) && !reaches(&mirror, 20..22, false));
    mirror.fault(&bytes(9..10), 0).unwrap();
    assert_eq!(made.asked(), [(8, 12, true)]);
    assert_eq!(mirror.counts().page_faults, 1, "a granule is one page of the device");
    Invalidate::invalidate(&*mirror, bytes(11..12));
    mirror.invalidated(bytes(11..12));
    assert!(!reaches(&mirror, 8..9, false));
}

#[test]
fn a_mirror_of_everything() {
    let made = Arc::new(Made::default());
    let top = (1 << 47) / page();
    made.map(0..4, true, false);
    made.map(top - 1..top, true, false);
    let mirror = Mirror::new(made.clone(), &(0..u64::MAX), page(), true, Box::new(|_| None));
    mirror.fault(&bytes(0..4), 0).unwrap();
    mirror.fault(&bytes(top - 1..top), 0).unwrap();
    assert_eq!(mirror.fault(&(u64::MAX - 8..u64::MAX), 0), Err(Fault));
    unmap(&made, &mirror, 0..u64::MAX / page());
    assert_eq!(mirror.counts().page_invalidations, 5);
}

#[test]
fn the_watcher_hears_what_is_counted() {
    #[derive(Default)]
    struct Heard(Mutex<Vec<Paging>>);
    impl PagingWatcher for Heard {
        fn paged(&self, what: Paging) {
            self.0.lock().unwrap().push(what);
        }
    }
    let heard = Arc::new(Heard::default());
    let (made, mirror) = made();
    assert!(mirror.watch(heard.clone()) && !mirror.watch(heard.clone()));
    mirror.fault(&bytes(0..2), 0).unwrap();
    unmap(&made, &mirror, 0..1);
    mirror.prefetch(&bytes(1..4), Prefetch::Write).unwrap();
    let expected = [Paging::Faulted(2), Paging::Invalidated(1), Paging::Prefetched(2)];
    assert_eq!(*heard.0.lock().unwrap(), expected);
}

/// Threads that use, fault and take away pages at once: nobody ever uses a page that is gone.
#[test]
fn nobody_uses_a_page_that_is_gone() {
    const PAGES: usize = 8;
    let (made, mirror) = mirror(0..PAGES as u64, true);
    let gone: [AtomicU64; PAGES] = Default::default();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        for start in 0..2 {
            let (mirror, gone, done) = (&mirror, &gone, &done);
            s.spawn(move || {
                let mut at = start;
                while !done.load(Relaxed) {
                    at = (at + 3) % PAGES;
                    let range = bytes(at as u64..at as u64 + 1);
                    let inside = mirror.enter();
                    if inside.covers(&range, true) {
                        assert_eq!(gone[at].load(SeqCst), 0, "page {at} is gone");
                    } else {
                        drop(inside);
                        let _ = mirror.fault(&range, 0);
                    }
                }
            });
        }
        for turn in 0..20_000 {
            let at = turn * 5 % PAGES;
            let range = bytes(at as u64..at as u64 + 1);
            Invalidate::invalidate(&*mirror, range.clone());
            gone[at].store(1, SeqCst);
            made.unmap(at as u64..at as u64 + 1);
            made.map(at as u64..at as u64 + 1, true, false);
            gone[at].store(0, SeqCst);
            mirror.invalidated(range);
            made.asked();
        }
        done.store(true, Relaxed);
    });
}

#[test]
fn who_insists_is_waited_for_but_not_for_ever() {
    let (made, mirror) = made();
    let mut turn = mirror.turn(&bytes(3..5));
    turn.insist();
    assert_eq!(turn.fault(0), Ok(true));
    std::thread::scope(|s| {
        let begun = Instant::now();
        let elsewhere = s.spawn(|| unmap(&made, &mirror, 8..9));
        elsewhere.join().unwrap();
        let here = s.spawn(|| unmap(&made, &mirror, 4..5));
        here.join().unwrap();
        assert!(begun.elapsed() >= COURTESY, "it did not wait at all");
    });
    assert!(!reaches(&mirror, 4..5, false), "the one that insists must not hold it up for ever");
    // What it finds gone itself, it does not wait for.
    mirror.found_gone(&bytes(3..4));
    drop(turn);
    assert!(!mirror.lock().turns.overlaps(&(0..u64::MAX)));
}

#[test]
fn a_long_change_is_not_waited_for_and_short_ones_are() {
    let (_made, mirror) = made();
    let range = bytes(3..4);
    assert!(mirror.is_ready(&range, true));
    Invalidate::invalidate(&*mirror, range.clone());
    assert!(!mirror.is_ready(&range, true) && !mirror.is_ready(&range, true));
    assert_eq!(mirror.fault(&range, 0), Ok(false), "it gives up for now");
    mirror.invalidated(range.clone());
    Invalidate::invalidate(&*mirror, range.clone());
    assert!(mirror.is_ready(&range, true), "another one: they are short");
    mirror.invalidated(range.clone());
    assert!(mirror.is_ready(&range, true));
}
