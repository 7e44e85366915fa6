//! When which QP wants to be looked at: a heap of appointments, and the earliest as one atomic word.
//!
//! A QP notes its earliest appointment only ([`Appointment`]); it may find on arrival that its deadline moved later, and
//! then makes a new one. So a stream of acknowledges costs no heap operation each.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const NEVER: u64 = u64::MAX;

/// Appointments of one device. The heap's lock is innermost.
pub(crate) struct Timers {
    epoch: Instant,
    heap: Mutex<BinaryHeap<Reverse<(Instant, u32)>>>,
    /// Earliest appointment, nanoseconds after `epoch`.
    next_ns: AtomicU64,
}

impl Timers {
    pub(crate) fn new(epoch: Instant) -> Timers {
        Timers { epoch, heap: Mutex::default(), next_ns: AtomicU64::new(NEVER) }
    }

    fn heap(&self) -> MutexGuard<'_, BinaryHeap<Reverse<(Instant, u32)>>> {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, heap: &BinaryHeap<Reverse<(Instant, u32)>>) {
        let next = heap.peek().map_or(NEVER, |Reverse((at, _))| self.since_epoch_ns(*at));
        self.next_ns.store(next, Relaxed);
    }

    fn since_epoch_ns(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_nanos().min(u128::from(NEVER - 1)) as u64
    }

    /// Makes an appointment; true when it is now the earliest.
    pub(crate) fn set(&self, at: Instant, qpn: u32) -> bool {
        let mut heap = self.heap();
        let earliest = heap.peek().is_none_or(|Reverse((first, _))| at < *first);
        heap.push(Reverse((at, qpn)));
        self.publish(&heap);
        earliest
    }

    /// Whether an appointment is due; costs one load.
    pub(crate) fn due(&self, now: Instant) -> bool {
        self.next_ns.load(Relaxed) <= self.since_epoch_ns(now)
    }

    /// Takes one due appointment.
    pub(crate) fn pop_due(&self, now: Instant) -> Option<u32> {
        let mut heap = self.heap();
        if heap.peek().is_none_or(|Reverse((at, _))| *at > now) {
            return None;
        }
        let qpn = heap.pop().map(|Reverse((_, qpn))| qpn);
        self.publish(&heap);
        qpn
    }

    /// Time left until the earliest appointment.
    pub(crate) fn until_next(&self, now: Instant) -> Option<Duration> {
        let next = self.next_ns.load(Relaxed);
        (next != NEVER).then(|| Duration::from_nanos(next.saturating_sub(self.since_epoch_ns(now))))
    }
}

/// What one QP knows of its appointments: the earliest that it still waits for. Later ones may stand in the heap.
#[derive(Default)]
pub(crate) struct Appointment(Option<Instant>);

impl Appointment {
    /// Whether a deadline needs an appointment of its own. An earlier one stands: it finds the new deadline when it comes.
    pub(crate) fn make(&mut self, deadline: Instant) -> bool {
        let needed = self.0.is_none_or(|earliest| deadline < earliest);
        if needed {
            self.0 = Some(deadline);
        }
        needed
    }

    /// One came due. What is noted and lies later is still in the heap; were it forgotten, it would be made again and
    /// again, and none of them would ever go.
    pub(crate) fn came(&mut self, now: Instant) {
        self.0 = self.0.filter(|&earliest| earliest > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appointments_of_a_busy_queue_pair_do_not_pile_up() {
        let start = Instant::now();
        let timers = Timers::new(start);
        let mut appointment = Appointment::default();
        for turn in 0..100 {
            let now = start + Duration::from_millis(turn);
            // Each burst wants the next turn at once; then the ACK timer counts again.
            for deadline in [now, now + Duration::from_millis(3)] {
                if appointment.make(deadline) {
                    timers.set(deadline, 1);
                }
                while timers.pop_due(now).is_some() {
                    appointment.came(now);
                    if appointment.make(now + Duration::from_millis(3)) {
                        timers.set(now + Duration::from_millis(3), 1);
                    }
                }
            }
        }
        assert!(timers.heap().len() <= 4, "{}", timers.heap().len());
    }

    #[test]
    fn appointments_come_due_in_order() {
        let start = Instant::now();
        let timers = Timers::new(start);
        let ms = |n| start + Duration::from_millis(n);
        assert!(timers.set(ms(20), 2));
        assert!(timers.set(ms(10), 1));
        assert!(!timers.set(ms(30), 3));
        assert!(!timers.due(ms(9)) && timers.due(ms(10)));
        assert_eq!(timers.until_next(ms(4)), Some(Duration::from_millis(6)));
        assert_eq!(timers.pop_due(ms(25)), Some(1));
        assert_eq!(timers.pop_due(ms(25)), Some(2));
        assert_eq!(timers.pop_due(ms(25)), None);
        assert_eq!(timers.pop_due(ms(30)), Some(3));
        assert_eq!(timers.until_next(ms(30)), None);
    }
}
