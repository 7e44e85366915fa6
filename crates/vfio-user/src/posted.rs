//! Writes that are carried out in a thread of their own, in order, so that the thread that serves
//! the machine can go on.
//!
//! What such a write sets off may reach memory by messages to the machine, or wait for somebody who
//! does. The machine's answer comes in through the thread that serves it: were that one to wait,
//! nobody would. And QEMU, which holds its lock while a processor waits for the answer to a read,
//! serves no memory meanwhile; after 5 s it gives the function up for good.

use crate::function::Function;
use engine_thread::{lock, wait};
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard};

/// Bytes that may wait. A machine that writes more waits for its turn.
const MOST: usize = 1 << 20;
/// What a write takes besides its bytes.
const OVERHEAD: usize = 64;

/// The writes of one client.
#[derive(Default)]
pub(crate) struct Posted {
    state: Mutex<Backlog>,
    changed: Condvar,
}

#[derive(Default)]
struct Backlog {
    waiting: VecDeque<Write>,
    /// Bytes that wait, as [`MOST`] counts.
    bytes: usize,
    /// One is being carried out.
    busy: bool,
    ended: bool,
}

struct Write {
    bar: u8,
    offset: u64,
    data: Vec<u8>,
}

impl Write {
    fn bytes(&self) -> usize {
        self.data.len() + OVERHEAD
    }
}

impl Posted {
    fn state(&self) -> MutexGuard<'_, Backlog> {
        lock(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, Backlog>) -> MutexGuard<'a, Backlog> {
        wait(&self.changed, state)
    }

    /// Has a write carried out after those before it, unless too much waits already; whether it
    /// has.
    pub(crate) fn push(&self, bar: u8, offset: u64, data: &[u8]) -> bool {
        let mut state = self.state();
        if state.bytes >= MOST && !state.ended {
            return false;
        }
        let write = Write { bar, offset, data: data.to_vec() };
        state.bytes += write.bytes();
        state.waiting.push_back(write);
        self.changed.notify_all();
        true
    }

    /// Waits until there is room for another write.
    pub(crate) fn wait_for_room(&self) {
        let mut state = self.state();
        while state.bytes >= MOST && !state.ended {
            state = self.wait(state);
        }
    }

    /// Whether every write has been carried out.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state();
        state.waiting.is_empty() && !state.busy
    }

    /// Carries writes out until the end.
    pub(crate) fn work(&self, function: &dyn Function) {
        let mut state = self.state();
        while !state.ended {
            let Some(write) = state.waiting.pop_front() else {
                state = self.wait(state);
                continue;
            };
            state.bytes -= write.bytes();
            state.busy = true;
            drop(state);
            function.bar_write(write.bar, write.offset, &write.data);
            state = self.state();
            state.busy = false;
            self.changed.notify_all();
        }
    }

    /// Forgets what waits.
    pub(crate) fn forget(&self) {
        let mut state = self.state();
        state.waiting.clear();
        state.bytes = 0;
    }

    /// Waits until the write at hand is carried out.
    pub(crate) fn settle(&self) {
        let mut state = self.state();
        while state.busy {
            state = self.wait(state);
        }
    }

    /// No write is begun any more.
    pub(crate) fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }
}
