//! The two threads that answer the kernel.

use super::{DEAD, FRAME, MOVING, PrivateMemory};
use crate::page_size;
use crate::uffd::{Event, Message};
use engine_thread::{lock, wait};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering::*;
use std::sync::{Condvar, Mutex};

/// Longest queue from the reader to the mover.
const MOST: usize = 1024;
const STACK_BYTES: usize = 128 << 10;
/// What a page that was never touched holds. The largest page of any supported system.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// What the mover is to do.
#[derive(Clone, Copy)]
enum Task {
    /// Somebody waits at this page.
    Home(u64),
    /// Mappings from here to there are gone.
    Sweep(u64, u64),
}

struct Queue {
    tasks: [Task; MOST],
    first: usize,
    used: usize,
    /// Tasks found no place: all that could be asked for is to be done.
    overflowed: bool,
}

/// The queue from the reader to the mover, in a fixed place so that nothing allocates.
pub(super) struct Work {
    queue: Mutex<Queue>,
    filled: Condvar,
}

impl Work {
    pub(super) fn new() -> Work {
        let tasks = [Task::Home(0); MOST];
        let queue = Queue { tasks, first: 0, used: 0, overflowed: false };
        Work { queue: Mutex::new(queue), filled: Condvar::new() }
    }

    fn push(&self, task: Task) {
        let mut queue = lock(&self.queue);
        if queue.used == MOST {
            queue.overflowed = true;
        } else {
            let place = (queue.first + queue.used) % MOST;
            queue.tasks[place] = task;
            queue.used += 1;
        }
        self.filled.notify_one();
    }

    /// The next task; `None` for all of them.
    fn pop(&self) -> Option<Task> {
        let mut queue = lock(&self.queue);
        while queue.used == 0 && !queue.overflowed {
            queue = wait(&self.filled, queue);
        }
        if queue.used == 0 {
            queue.overflowed = false;
            return None;
        }
        let task = queue.tasks[queue.first];
        queue.first = (queue.first + 1) % MOST;
        queue.used -= 1;
        Some(task)
    }
}

pub(super) fn start(private: &'static PrivateMemory) -> io::Result<()> {
    engine_thread::spawn(c"peerdma-faults", STACK_BYTES, move || private.read_events())?;
    engine_thread::spawn(c"peerdma-moves", STACK_BYTES, move || private.bring())?;
    Ok(())
}

impl PrivateMemory {
    /// The reader.
    fn read_events(&self) {
        let mut room = [Message::default(); 16];
        while self.uffd.wait() {
            // whoever caused an event goes on when it is read, and finds the entries changed once
            // it gets the lock
            let _guard = lock(&self.lock);
            self.uffd
                .read(&mut room)
                .unwrap_or_default()
                .iter()
                .filter_map(Message::event)
                .for_each(|e| self.answer(e));
        }
    }

    /// Answers an event, under `lock`.
    fn answer(&self, event: Event) {
        match event {
            Event::Fault { addr, protected } => {
                self.answer_fault(addr & !(page_size() - 1), protected)
            }
            Event::Moved { from, to, len } => self.rename(from..from + len, to),
            Event::Discarded(range) => self.bury(&range, false),
            Event::Unmapped(range) => self.bury(&range, true),
        }
    }

    fn answer_fault(&self, at: u64, protected: bool) {
        let page = page_size();
        let here = at..at + page;
        let entry = self.entries.get(at / page);
        let moving = entry & MOVING != 0;
        if entry & FRAME != 0 && entry & (MOVING | DEAD) == 0 {
            self.work.push(Task::Home(at));
        } else if moving && (protected || entry & FRAME != 0) {
            // waits: the migration wakes it when it is over
        } else if protected {
            let _ = self.uffd.write_protect(&here, false);
        } else if self.uffd.copy(at, ZEROES.as_ptr() as u64, page, moving).is_ok() {
            self.uffd.wake(&here);
        } else {
            // it is there by now, or the mapping is just being changed: the mover lets it try again
            self.work.push(Task::Home(at));
        }
    }

    /// Pages whose content nobody wants any more.
    fn bury(&self, range: &Range<u64>, unmapped: bool) {
        let page = page_size();
        let mut any = false;
        self.entries.each(&(range.start / page..range.end.div_ceil(page)), |_, word| {
            let entry = word.load(Acquire);
            if entry & MOVING != 0 {
                // a discard is the migration's own
                if unmapped {
                    word.fetch_or(DEAD, SeqCst);
                }
            } else if entry & FRAME != 0 && entry & DEAD == 0 {
                word.store(entry | DEAD, SeqCst);
                self.away.fetch_sub(1, SeqCst);
                any = true;
            }
        });
        if any {
            self.work.push(Task::Sweep(range.start, range.end));
        }
    }

    /// A mapping moved (mremap(2)): its pages that are away have new addresses.
    fn rename(&self, from: Range<u64>, to: u64) {
        let page = page_size();
        let first = from.start / page;
        self.entries.each(&(first..from.end.div_ceil(page)), |number, word| {
            let entry = word.load(Acquire);
            if entry & FRAME == 0 || entry & (MOVING | DEAD) != 0 {
                return;
            }
            let place = self.entries.make(to / page + (number - first));
            match place.filter(|place| place.load(Acquire) == 0) {
                Some(place) => {
                    place.store(entry, SeqCst);
                    word.store(0, SeqCst);
                }
                None => {
                    word.store(entry | DEAD, SeqCst);
                    self.away.fetch_sub(1, SeqCst);
                }
            }
        });
        self.work.push(Task::Sweep(from.start, from.end));
    }

    /// The mover.
    fn bring(&self) {
        let page = page_size();
        loop {
            match self.work.pop() {
                Some(Task::Home(at)) => {
                    self.home(&(at..at + page));
                    // also where it was home already
                    self.uffd.wake(&(at..at + page));
                }
                Some(Task::Sweep(start, end)) => self.sweep(&(start..end)),
                None => {
                    self.sweep(&(0..u64::MAX));
                    self.uffd.wake(&(page..(1 << 47) - page));
                }
            }
        }
    }
}
