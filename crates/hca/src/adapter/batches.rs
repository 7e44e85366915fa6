//! Staging buffers for packets, which the threads of a device take turns with.
//!
//! There is always one. Another is made when all are in use; where there is no memory for it, the
//! caller waits for one, and never long: who has one holds it for a burst of packets and waits for
//! nobody.

use engine_thread::{lock, wait};
use link::Batch;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard};

/// The buffers of one device.
pub(crate) struct Batches {
    free: Mutex<Free>,
    returned: Condvar,
}

/// The buffers that nobody uses, with room for all that were made.
struct Free {
    batches: Vec<Batch>,
    made: usize,
    /// Callers that wait for one. Only they need a call to the system when one comes back.
    waiting: usize,
}

impl Free {
    fn make(&mut self) -> io::Result<Batch> {
        let room = self.made + 1 - self.batches.len();
        self.batches.try_reserve(room).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let batch = Batch::new()?;
        self.made += 1;
        Ok(batch)
    }
}

impl Batches {
    /// One buffer.
    ///
    /// # Errors
    /// The system has no memory for it.
    pub(crate) fn new() -> io::Result<Batches> {
        let mut free = Free { batches: Vec::new(), made: 0, waiting: 0 };
        let first = free.make()?;
        free.batches.push(first);
        Ok(Batches { free: Mutex::new(free), returned: Condvar::new() })
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        lock(&self.free)
    }

    /// A buffer, to be given back.
    pub(crate) fn take(&self) -> Batch {
        let mut free = self.free();
        loop {
            if let Some(batch) = free.batches.pop() {
                return batch;
            }
            match free.make() {
                Ok(batch) => return batch,
                Err(_) => {
                    free.waiting += 1;
                    free = wait(&self.returned, free);
                    free.waiting -= 1;
                }
            }
        }
    }

    /// Gives one back.
    pub(crate) fn give_back(&self, batch: Batch) {
        let mut free = self.free();
        free.batches.push(batch);
        let is_awaited = free.waiting > 0;
        drop(free);
        if is_awaited {
            self.returned.notify_one();
        }
    }
}
