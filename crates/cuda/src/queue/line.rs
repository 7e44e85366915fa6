//! One line of work, and the thread that does it.

use engine_thread::{lock, spawn, wait};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

/// A piece of work.
pub type Work = Box<dyn FnOnce() + Send>;

/// Room for what pieces of work put on the stack; host functions of programs are among them.
const STACK_BYTES: usize = 1 << 20;

thread_local! {
    static IS_WORKER: Cell<bool> = const { Cell::new(false) };
    static IS_STAND_IN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread does the work of a stream: then it calls a function of the program's,
/// which may not call the driver.
pub fn is_worker() -> bool {
    IS_WORKER.try_with(Cell::get).unwrap_or(false)
}

/// Whether the calling thread is the program's, and does the work of a stream because there is no
/// other to do it.
pub(super) fn is_stand_in() -> bool {
    IS_STAND_IN.try_with(Cell::get).unwrap_or(false)
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// Pieces queued, and of those done, since the beginning.
    queued: u64,
    done: u64,
    has_thread: bool,
    /// The thread ends when nothing waits.
    is_closed: bool,
}

/// A line of work.
#[derive(Default)]
pub struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

/// A place in a line: reached when the piece queued there is done.
#[derive(Clone)]
pub struct Point {
    line: Arc<Line>,
    at: u64,
}

impl Point {
    /// Whether it is reached.
    pub fn is_reached(&self) -> bool {
        lock(&self.line.state).done >= self.at
    }

    /// Returns once it is reached.
    pub fn wait(&self) {
        let mut state = lock(&self.line.state);
        while state.done < self.at {
            state = wait(&self.line.changed, state);
        }
    }

    /// Returns once it is reached, or [`Line::look_again`] was called and `gives_up` says so:
    /// whether it is reached.
    pub fn wait_unless(&self, gives_up: impl Fn() -> bool) -> bool {
        let mut state = lock(&self.line.state);
        while state.done < self.at {
            if gives_up() {
                return false;
            }
            state = wait(&self.line.changed, state);
        }
        true
    }

    /// Whether it is of this line.
    pub fn is_of(&self, line: &Arc<Line>) -> bool {
        Arc::ptr_eq(&self.line, line)
    }
}

impl Line {
    /// Appends a piece of work, and has a thread do it.
    pub fn queue(self: &Arc<Self>, work: Work) -> Point {
        let (point, starts) = self.append(work);
        if starts {
            self.start();
        }
        point
    }

    /// Appends a piece of work; whether [`Line::start`] is to be called behind it. The caller may
    /// have locks that the work takes itself, and lets go of them first.
    pub(super) fn append(self: &Arc<Self>, work: Work) -> (Point, bool) {
        let mut state = lock(&self.state);
        state.waiting.push_back(work);
        state.queued += 1;
        let point = Point { line: self.clone(), at: state.queued };
        let starts = !state.has_thread;
        state.has_thread = true;
        drop(state);
        self.changed.notify_all();
        (point, starts)
    }

    /// Whether there is memory to append so many pieces.
    pub(super) fn has_room(&self, pieces: usize) -> bool {
        lock(&self.state).waiting.try_reserve(pieces).is_ok()
    }

    /// Begins to do what was appended.
    pub(super) fn start(self: &Arc<Self>) {
        let line = self.clone();
        if spawn(c"cuda-stream", STACK_BYTES, move || line.work()).is_err() {
            self.stand_in();
        }
    }

    /// Without a thread the work is done here and now.
    fn stand_in(&self) {
        let was = (IS_WORKER.replace(true), IS_STAND_IN.replace(true));
        loop {
            self.work_off();
            let mut state = lock(&self.state);
            // What another thread appended since is not left behind.
            if state.waiting.is_empty() {
                state.has_thread = false;
                break;
            }
        }
        IS_WORKER.set(was.0);
        IS_STAND_IN.set(was.1);
    }

    /// The place of what was queued last.
    pub fn last(self: &Arc<Self>) -> Point {
        Point { line: self.clone(), at: lock(&self.state).queued }
    }

    /// Whether everything that was queued is done.
    pub fn is_idle(&self) -> bool {
        let state = lock(&self.state);
        state.done == state.queued
    }

    /// Lets the thread end when nothing waits any more.
    pub fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }

    /// Has those who wait for a point look whether they give up.
    pub fn look_again(&self) {
        drop(lock(&self.state));
        self.changed.notify_all();
    }

    fn work(&self) {
        IS_WORKER.set(true);
        loop {
            self.work_off();
            let mut state = lock(&self.state);
            while state.waiting.is_empty() {
                if state.is_closed {
                    state.has_thread = false;
                    return;
                }
                state = wait(&self.changed, state);
            }
        }
    }

    fn work_off(&self) {
        loop {
            let work = lock(&self.state).waiting.pop_front();
            let Some(work) = work else { return };
            // A panic of ours ends neither the thread nor the program: the piece counts as done.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            lock(&self.state).done += 1;
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_in_order_and_a_point_is_reached_behind_it() {
        let line = Arc::new(Line::default());
        let seen = Arc::new(Mutex::new(Vec::new()));
        assert!(line.is_idle() && line.last().is_reached());
        let (gate, hold) = (Arc::new(Line::default()), Arc::new(Mutex::new(())));
        let held = lock(&hold);
        let first = {
            let hold = hold.clone();
            line.queue(Box::new(move || drop(lock(&hold))))
        };
        let points: Vec<Point> = (0..100)
            .map(|i| {
                let seen = seen.clone();
                line.queue(Box::new(move || lock(&seen).push(i)))
            })
            .collect();
        assert!(!first.is_reached() && !points[0].is_reached() && !line.is_idle());
        drop(held);
        points[99].wait();
        assert_eq!(*lock(&seen), (0..100).collect::<Vec<_>>());
        assert!(points.iter().all(Point::is_reached) && line.is_idle());
        assert!(points[0].is_of(&line) && !points[0].is_of(&gate));
        line.queue(Box::new(|| panic!("as a test"))).wait();
        line.close();
    }

    #[test]
    fn who_stands_in_for_a_thread_does_what_comes_meanwhile_too() {
        let line = Arc::new(Line::default());
        let (inside, late) = (line.clone(), Arc::new(Mutex::new(None)));
        let seen = late.clone();
        let (first, starts) = line.append(Box::new(move || {
            assert!(is_worker() && is_stand_in());
            *lock(&seen) = Some(inside.append(Box::new(|| assert!(is_stand_in()))));
        }));
        line.stand_in();
        let (second, starts_again) = lock(&late).take().unwrap();
        assert!(starts && !starts_again && first.is_reached() && second.is_reached());
        assert!(!is_worker() && !is_stand_in());
        line.queue(Box::new(|| assert!(!is_stand_in()))).wait();
        line.close();
    }
}
