//! Counting of delivered and acknowledged events: destroying an object waits until the program has
//! acknowledged every event it got for it (ibv_ack_cq_events(3), ibv_ack_async_event(3)).

use engine_thread::{lock, wait};
use std::sync::{Condvar, Mutex, MutexGuard};

#[derive(Default)]
struct Counts {
    delivered: u64,
    acknowledged: u64,
    /// Whether somebody waits: to wake nobody takes a system call.
    is_awaited: bool,
}

/// The counts of one object and one kind of event.
#[derive(Default)]
pub struct Acks {
    counts: Mutex<Counts>,
    changed: Condvar,
}

impl Acks {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }

    /// One event reached the program.
    pub fn delivered(&self) {
        self.counts().delivered += 1;
    }

    /// The program acknowledged `events` of them.
    pub fn acknowledge(&self, events: u32) {
        let mut counts = self.counts();
        counts.acknowledged += u64::from(events);
        if counts.is_awaited {
            self.changed.notify_all();
        }
    }

    /// Waits until as many events were acknowledged as delivered.
    pub fn wait(&self) {
        let mut counts = self.counts();
        while counts.acknowledged < counts.delivered {
            counts.is_awaited = true;
            counts = wait(&self.changed, counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_ends_with_the_last_acknowledgement() {
        let acks = Acks::default();
        acks.wait();
        acks.delivered();
        acks.delivered();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| acks.wait());
            acks.acknowledge(1);
            assert!(!waiter.is_finished());
            acks.acknowledge(1);
        });
        acks.wait();
    }
}
