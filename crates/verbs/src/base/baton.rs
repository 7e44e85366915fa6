//! A lock that is taken in one C call and released in another (`ibv_start_poll` to `ibv_end_poll`,
//! `ibv_wr_start` to `ibv_wr_complete`).

use engine_thread::{lock, wait};
use std::sync::{Condvar, Mutex};

/// The lock. Giving back what was not taken is harmless.
#[derive(Default)]
pub struct Baton {
    taken: Mutex<bool>,
    free: Condvar,
}

impl Baton {
    /// Waits until nobody has it, and takes it.
    pub fn take(&self) {
        let mut taken = lock(&self.taken);
        while *taken {
            taken = wait(&self.free, taken);
        }
        *taken = true;
    }

    /// Gives it back.
    pub fn give_back(&self) {
        *lock(&self.taken) = false;
        self.free.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time() {
        let baton = Baton::default();
        baton.take();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| baton.take());
            assert!(!second.is_finished());
            baton.give_back();
        });
        baton.give_back();
        baton.take();
    }
}
