//! When which QP wants to be looked at: a heap with one appointment each, and the earliest as one
//! atomic word.
//!
//! A QP notes its appointment ([`Appointment`]); it may find on arrival that its deadline moved
//! later, and then makes a new one. So a stream of acknowledges costs no heap operation each, and
//! the heap is never larger than the number of QPs.

use crate::adapter::directory::MAX_QPS as NUMBERS;
use crate::adapter::management::GSI_QPN;
use engine_thread::lock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use transport::list_of;
use transport::{Error, Result};

const NEVER: u64 = u64::MAX;

/// Appointments of one device. The heap's lock is innermost.
pub(crate) struct Timers {
    epoch: Instant,
    heap: Mutex<Heap>,
    /// Earliest appointment, nanoseconds after `epoch`.
    next_ns: AtomicU64,
}

/// A binary heap whose entries are found by their number.
struct Heap {
    /// Instant, place in the order of making, queue pair.
    entries: Vec<(Instant, u64, u32)>,
    /// Appointments made so far: those for one instant come due in the order of making, so that who
    /// does a part of its work and asks for the rest goes behind all others.
    made: u64,
    /// By number, that of the management queue pair last: 1 + index of its entry, 0 without one.
    places: Box<[u16]>,
}

impl Heap {
    fn place(&mut self, qpn: u32) -> &mut u16 {
        let number = if qpn == GSI_QPN { NUMBERS } else { qpn as usize % NUMBERS };
        &mut self.places[number]
    }

    fn first(&self) -> Option<Instant> {
        self.entries.first().map(|(at, _, _)| *at)
    }

    /// Enters an appointment, or moves the number's own to an earlier time.
    fn set(&mut self, at: Instant, qpn: u32) {
        self.made += 1;
        let entry = (at, self.made, qpn);
        match usize::from(*self.place(qpn)) {
            0 => {
                self.entries.push(entry);
                self.rise(self.entries.len() - 1);
            }
            place if at < self.entries[place - 1].0 => {
                self.entries[place - 1] = entry;
                self.rise(place - 1);
            }
            _ => {}
        }
    }

    fn pop(&mut self) -> Option<u32> {
        let (_, _, qpn) = *self.entries.first()?;
        self.remove(qpn);
        Some(qpn)
    }

    /// Takes out the number's appointment, if it has one.
    fn remove(&mut self, qpn: u32) {
        let place = std::mem::take(self.place(qpn));
        let (Some(index), Some(last)) = (usize::from(place).checked_sub(1), self.entries.last())
        else {
            return;
        };
        let last = *last;
        self.entries.pop();
        if index < self.entries.len() {
            self.entries[index] = last;
            self.rise(index);
            let risen = usize::from(*self.place(last.2)) - 1;
            self.sink(risen);
        }
    }

    fn rise(&mut self, mut index: usize) {
        while index > 0 && self.entries[index] < self.entries[(index - 1) / 2] {
            self.entries.swap(index, (index - 1) / 2);
            self.note(index);
            index = (index - 1) / 2;
        }
        self.note(index);
    }

    fn sink(&mut self, mut index: usize) {
        loop {
            let below = (2 * index + 1..2 * index + 3).filter(|&child| child < self.entries.len());
            let Some(child) = below.min_by_key(|&child| self.entries[child]) else { break };
            if self.entries[index] <= self.entries[child] {
                break;
            }
            self.entries.swap(index, child);
            self.note(index);
            index = child;
        }
        self.note(index);
    }

    fn note(&mut self, index: usize) {
        let qpn = self.entries[index].2;
        *self.place(qpn) = index as u16 + 1;
    }
}

impl Timers {
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new(epoch: Instant) -> Result<Timers> {
        let mut places = list_of(NUMBERS + 1)?;
        places.resize(NUMBERS + 1, 0);
        let heap = Heap { entries: Vec::new(), made: 0, places: places.into() };
        Ok(Timers { epoch, heap: Mutex::new(heap), next_ns: AtomicU64::new(NEVER) })
    }

    /// Sets memory aside for the appointments of `numbers` QPs.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn set_aside(&self, numbers: usize) -> Result<()> {
        let mut heap = self.heap();
        let more = numbers.saturating_sub(heap.entries.len());
        let reserved = heap.entries.try_reserve(more);
        reserved.map_err(|_| Error::NoMemory("the system has no memory for a timer"))
    }

    fn heap(&self) -> MutexGuard<'_, Heap> {
        lock(&self.heap)
    }

    fn publish(&self, heap: &Heap) {
        let next = heap.first().map_or(NEVER, |at| self.since_epoch_ns(at));
        self.next_ns.store(next, Relaxed);
    }

    fn since_epoch_ns(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_nanos().min(u128::from(NEVER - 1)) as u64
    }

    /// Makes an appointment, unless there is an earlier one of the QP; true when it is now the
    /// earliest of all.
    pub(crate) fn set(&self, at: Instant, qpn: u32) -> bool {
        let mut heap = self.heap();
        let earliest = heap.first().is_none_or(|first| at < first);
        heap.set(at, qpn);
        self.publish(&heap);
        earliest
    }

    /// Whether an appointment is due, `now_ns` after the epoch; costs one load.
    pub(crate) fn are_due(&self, now_ns: u64) -> bool {
        self.next_ns.load(Relaxed) <= now_ns
    }

    /// Takes one due appointment.
    pub(crate) fn pop_due(&self, now: Instant) -> Option<u32> {
        let mut heap = self.heap();
        if heap.first().is_none_or(|at| at > now) {
            return None;
        }
        let qpn = heap.pop();
        self.publish(&heap);
        qpn
    }

    /// The queue pair is no more: it has no appointment, and who gets its place begins without one.
    pub(crate) fn remove(&self, qpn: u32) {
        let mut heap = self.heap();
        heap.remove(qpn);
        self.publish(&heap);
    }

    /// Time left until the earliest appointment.
    pub(crate) fn until_next(&self, now: Instant) -> Option<Duration> {
        let next = self.next_ns.load(Relaxed);
        (next != NEVER).then(|| Duration::from_nanos(next.saturating_sub(self.since_epoch_ns(now))))
    }
}

/// What one QP knows of its appointment.
#[derive(Default)]
pub(crate) struct Appointment {
    at: Option<Instant>,
    /// It was no more than this away when it was made, in nanoseconds.
    within_ns: u32,
}

impl Appointment {
    /// Whether a deadline needs an appointment of its own. An earlier one stands: it finds the new
    /// deadline when it comes.
    pub(crate) fn make(&mut self, deadline: Instant) -> bool {
        let needed = self.at.is_none_or(|earliest| deadline < earliest);
        if needed {
            (self.at, self.within_ns) = (Some(deadline), u32::MAX);
        }
        needed
    }

    /// The one that there is, if there is one, is no more than `wait` away now.
    pub(crate) fn is_within(&mut self, wait: Duration) {
        self.within_ns = u32::try_from(wait.as_nanos()).unwrap_or(u32::MAX);
    }

    /// Whether there is one within `wait` from now on, so that no deadline after that needs its
    /// own. Looks at no clock.
    pub(crate) fn comes_within(&self, wait: Duration) -> bool {
        self.at.is_some() && u128::from(self.within_ns) <= wait.as_nanos()
    }

    /// It came due: there is none now.
    pub(crate) fn came(&mut self) {
        self.at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appointments_of_a_busy_queue_pair_do_not_pile_up() {
        let start = Instant::now();
        let timers = Timers::new(start).unwrap();
        let mut appointment = Appointment::default();
        for turn in 0..100 {
            let now = start + Duration::from_millis(turn);
            // Each burst wants the next turn at once; then the ACK timer counts again.
            for deadline in [now, now + Duration::from_millis(3)] {
                if appointment.make(deadline) {
                    timers.set(deadline, 1);
                }
                while timers.pop_due(now).is_some() {
                    appointment.came();
                    if appointment.make(now + Duration::from_millis(3)) {
                        timers.set(now + Duration::from_millis(3), 1);
                    }
                }
            }
        }
        assert!(timers.heap().entries.len() <= 1);
    }

    #[test]
    fn who_gets_the_place_of_a_queue_pair_that_is_gone_has_appointments_of_its_own() {
        let now = Instant::now();
        let timers = Timers::new(now).unwrap();
        let (gone, next) = (7, 7 + NUMBERS as u32);
        timers.set(now, gone);
        timers.remove(gone);
        let later = now + Duration::from_secs(1);
        timers.set(later, next);
        assert_eq!((timers.pop_due(now), timers.pop_due(later)), (None, Some(next)));
    }

    #[test]
    fn who_asks_again_for_the_same_instant_goes_behind_the_others() {
        let now = Instant::now();
        let timers = Timers::new(now).unwrap();
        for qpn in [5, 9, 1] {
            timers.set(now, qpn);
        }
        let served = (0..7).map(|_| {
            let qpn = timers.pop_due(now).unwrap();
            timers.set(now, qpn);
            qpn
        });
        assert_eq!(served.collect::<Vec<_>>(), [5, 9, 1, 5, 9, 1, 5]);
    }

    #[test]
    fn appointments_come_due_in_order() {
        let start = Instant::now();
        let timers = Timers::new(start).unwrap();
        let ms = |n| start + Duration::from_millis(n);
        assert!(timers.set(ms(20), 2));
        assert!(timers.set(ms(10), 1));
        assert!(!timers.set(ms(30), 3));
        assert!(
            !timers.are_due(timers.since_epoch_ns(ms(9)))
                && timers.are_due(timers.since_epoch_ns(ms(10)))
        );
        assert_eq!(timers.until_next(ms(4)), Some(Duration::from_millis(6)));
        assert_eq!(timers.pop_due(ms(25)), Some(1));
        assert_eq!(timers.pop_due(ms(25)), Some(2));
        assert_eq!(timers.pop_due(ms(25)), None);
        assert_eq!(timers.pop_due(ms(30)), Some(3));
        assert_eq!(timers.until_next(ms(30)), None);
    }

    #[test]
    fn a_queue_pair_has_one_appointment_and_the_earliest_of_all_comes_first() {
        let start = Instant::now();
        let timers = Timers::new(start).unwrap();
        let ms = |n| start + Duration::from_millis(n);
        // Far deadlines among near ones, as of a connection that waits 4 s for an acknowledge and
        // answers at once.
        let mut random = 1u64;
        let mut wanted = std::collections::BTreeMap::new();
        for _ in 0..10_000 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (qpn, at) = ((random >> 33) as u32 % 50, ms((random >> 40) % 4000));
            timers.set(at, qpn);
            let noted = wanted.entry(qpn).or_insert(at);
            *noted = at.min(*noted);
            if random >> 60 == 1 {
                timers.remove(qpn);
                wanted.remove(&qpn);
            }
            if random >> 60 == 0 && !wanted.is_empty() {
                let qpn = timers.pop_due(ms(4000)).unwrap();
                let at = wanted.remove(&qpn).unwrap();
                assert!(wanted.values().all(|other| *other >= at));
            }
            assert_eq!(timers.heap().entries.len(), wanted.len());
        }
        let mut last = start;
        while let Some(qpn) = timers.pop_due(ms(4000)) {
            let at = wanted.remove(&qpn).unwrap();
            assert!(at >= last);
            last = at;
        }
        assert!(wanted.is_empty());
    }
}
