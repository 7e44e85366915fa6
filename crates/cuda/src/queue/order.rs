//! The order between the lines of a context (CUDA C++ Programming Guide, default stream): work of
//! the legacy default stream comes after all that blocking streams were given before, and what they
//! are given after it comes after it.

use super::line::{Line, Point, Work};
use engine_thread::lock;
use std::cell::RefCell;
use std::sync::{Arc, Mutex, Weak};

/// What a line is to the legacy default stream.
#[derive(Clone)]
pub enum Kind {
    /// It is the legacy default stream.
    Legacy,
    /// The default stream of the calling thread, which is a blocking one.
    PerThread,
    /// A stream that the legacy one and it wait for each other.
    Blocking(Arc<Line>),
    /// A stream that goes its own way.
    Apart(Arc<Line>),
}

/// A thread's own line of a context, which ends with the thread: what waits in it is done first.
struct OfThread {
    legacy: Weak<Line>,
    own: Arc<Line>,
}

impl Drop for OfThread {
    fn drop(&mut self) {
        self.own.close();
    }
}

thread_local! {
    /// The calling thread's, one for each context that it used.
    static OWN: RefCell<Vec<OfThread>> = const { RefCell::new(Vec::new()) };
}

#[derive(Default)]
struct Lines {
    legacy: Arc<Line>,
    blocking: Vec<Weak<Line>>,
    apart: Vec<Weak<Line>>,
}

impl Lines {
    /// The line of a kind.
    fn line(&mut self, kind: &Kind) -> Arc<Line> {
        match kind {
            Kind::Legacy => self.legacy.clone(),
            // A thread that ends has none any more.
            Kind::PerThread => OWN
                .try_with(|own| self.of_thread(&mut own.borrow_mut()))
                .unwrap_or_else(|_| self.legacy.clone()),
            Kind::Blocking(line) | Kind::Apart(line) => line.clone(),
        }
    }

    fn of_thread(&mut self, own: &mut Vec<OfThread>) -> Arc<Line> {
        let legacy = Arc::downgrade(&self.legacy);
        if let Some(known) = own.iter().find(|known| known.legacy.ptr_eq(&legacy)) {
            return known.own.clone();
        }
        // Those of contexts that are gone.
        own.retain(|known| known.legacy.strong_count() > 0);
        let line = Arc::new(Line::default());
        self.blocking.push(Arc::downgrade(&line));
        own.push(OfThread { legacy, own: line.clone() });
        line
    }

    fn blocking(&mut self) -> Vec<Arc<Line>> {
        self.blocking.retain(|line| line.strong_count() > 0);
        self.blocking.iter().filter_map(Weak::upgrade).collect()
    }

    /// What work of a kind has to come after, of other lines.
    fn before(&mut self, kind: &Kind) -> Vec<Point> {
        let lines = match kind {
            Kind::Legacy => self.blocking(),
            Kind::PerThread | Kind::Blocking(_) => vec![self.legacy.clone()],
            Kind::Apart(_) => Vec::new(),
        };
        lines.iter().map(Line::last).filter(|point| !point.is_reached()).collect()
    }

    fn all(&mut self) -> Vec<Arc<Line>> {
        self.apart.retain(|line| line.strong_count() > 0);
        let apart: Vec<_> = self.apart.iter().filter_map(Weak::upgrade).collect();
        self.blocking().into_iter().chain(apart).chain([self.legacy.clone()]).collect()
    }
}

/// Has a line wait for places in others; whether it is to be started.
fn append_waits(line: &Arc<Line>, points: Vec<Point>) -> bool {
    let mut starts = false;
    for point in points {
        starts |= line.append(Box::new(move || point.wait())).1;
    }
    starts
}

/// The lines of a context.
#[derive(Default)]
pub struct Queues {
    lines: Mutex<Lines>,
}

impl Queues {
    /// A new line, which waits for the legacy default stream if it `blocks`.
    pub fn add(&self, blocks: bool) -> Kind {
        let line = Arc::new(Line::default());
        let mut lines = lock(&self.lines);
        let list = if blocks { &mut lines.blocking } else { &mut lines.apart };
        list.push(Arc::downgrade(&line));
        if blocks { Kind::Blocking(line) } else { Kind::Apart(line) }
    }

    /// Whether there is memory for one more piece of work in the line of a kind, and for what has
    /// to come before it.
    pub fn has_room(&self, kind: &Kind) -> bool {
        let mut lines = lock(&self.lines);
        let pieces = lines.before(kind).len() + 1;
        lines.line(kind).has_room(pieces)
    }

    /// Queues work behind what it has to come after.
    pub fn queue(&self, kind: &Kind, work: Work) -> Point {
        let mut lines = lock(&self.lines);
        let line = lines.line(kind);
        let mut starts = append_waits(&line, lines.before(kind));
        let (point, is_first) = line.append(work);
        starts |= is_first;
        drop(lines);
        if starts {
            line.start();
        }
        point
    }

    /// The place behind everything that is in the line of a kind. The legacy one counts as having
    /// what blocking ones have; these do not have what it has.
    pub fn last(&self, kind: &Kind) -> Point {
        let mut lines = lock(&self.lines);
        let line = lines.line(kind);
        let is_legacy = matches!(kind, Kind::Legacy);
        let before = if is_legacy { lines.before(kind) } else { Vec::new() };
        let starts = append_waits(&line, before);
        let last = line.last();
        drop(lines);
        if starts {
            line.start();
        }
        last
    }

    /// Whether that is done.
    pub fn is_done(&self, kind: &Kind) -> bool {
        let mut lines = lock(&self.lines);
        let is_legacy = matches!(kind, Kind::Legacy);
        lines.line(kind).is_idle() && (!is_legacy || lines.before(kind).is_empty())
    }

    /// Whether work of this kind could be done at once.
    pub fn is_idle(&self, kind: &Kind) -> bool {
        let mut lines = lock(&self.lines);
        lines.line(kind).is_idle() && lines.before(kind).is_empty()
    }

    /// Returns once everything that was queued is done.
    pub fn wait_all(&self) {
        let points: Vec<Point> = lock(&self.lines).all().iter().map(Line::last).collect();
        points.iter().for_each(Point::wait);
    }

    /// Has what waits for a point look whether it gives up ([`Point::wait_unless`]).
    pub fn look_again(&self) {
        lock(&self.lines).all().iter().for_each(|line| line.look_again());
    }

    /// Finishes what was queued, and lets the threads end.
    pub fn end(&self) {
        self.wait_all();
        lock(&self.lines).all().iter().for_each(|line| line.close());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    /// Queues a letter that is noted when its piece is done.
    fn note(queues: &Queues, kind: &Kind, seen: &Arc<Mutex<String>>, letter: char) -> Point {
        let seen = seen.clone();
        queues.queue(kind, Box::new(move || lock(&seen).push(letter)))
    }

    /// Queues a piece that is done once the answer is dropped.
    fn hold(queues: &Queues, kind: &Kind) -> Sender<()> {
        let (held, gate) = channel();
        queues.queue(kind, Box::new(move || assert!(gate.recv().is_err())));
        held
    }

    #[test]
    fn the_legacy_stream_and_blocking_ones_wait_for_each_other() {
        let queues = Queues::default();
        let (one, two) = (queues.add(true), queues.add(true));
        let seen = Arc::new(Mutex::new(String::new()));
        let held = hold(&queues, &one);
        note(&queues, &one, &seen, 'a');
        let legacy = note(&queues, &Kind::Legacy, &seen, 'b');
        let after = note(&queues, &two, &seen, 'c');
        let own = note(&queues, &Kind::PerThread, &seen, 'd');
        assert!(!queues.is_idle(&two) && !queues.is_idle(&Kind::PerThread));
        assert!(!legacy.is_reached() && !after.is_reached() && !own.is_reached());
        drop(held);
        queues.wait_all();
        let seen = lock(&seen).clone();
        assert!(["abcd", "abdc"].contains(&seen.as_str()), "{seen}");
        queues.end();
    }

    #[test]
    fn an_empty_stream_is_done_whatever_the_legacy_one_has() {
        let queues = Queues::default();
        let blocking = queues.add(true);
        let held = hold(&queues, &Kind::Legacy);
        for kind in [&blocking, &Kind::PerThread] {
            assert!(queues.is_done(kind) && !queues.is_idle(kind));
            queues.last(kind).wait();
        }
        assert!(!queues.is_done(&Kind::Legacy));
        let after = queues.queue(&blocking, Box::new(|| ()));
        assert!(!queues.is_done(&blocking) && !after.is_reached());
        drop(held);
        queues.last(&blocking).wait();
        assert!(after.is_reached());
        queues.end();
    }

    #[test]
    fn a_threads_line_ends_with_the_thread() {
        let queues = Queues::default();
        let seen = Arc::new(Mutex::new(String::new()));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| note(&queues, &Kind::PerThread, &seen, 'a'));
            }
        });
        queues.last(&Kind::Legacy).wait();
        assert_eq!(*lock(&seen), "aaaaaaaa");
        let first = lock(&queues.lines).line(&Kind::PerThread);
        assert!(Arc::ptr_eq(&first, &lock(&queues.lines).line(&Kind::PerThread)));
        // Their threads of work let go of the others.
        while lock(&queues.lines).blocking().len() > 1 {
            std::thread::yield_now();
        }
        queues.end();
    }

    #[test]
    fn a_stream_apart_waits_for_nobody() {
        let queues = Queues::default();
        let (one, apart) = (queues.add(true), queues.add(false));
        let seen = Arc::new(Mutex::new(String::new()));
        let held = hold(&queues, &one);
        let legacy = note(&queues, &Kind::Legacy, &seen, 'b');
        note(&queues, &apart, &seen, 'a').wait();
        assert!(queues.is_idle(&apart) && !legacy.is_reached());
        drop(held);
        queues.last(&Kind::Legacy).wait();
        assert_eq!(*lock(&seen), "ab");
        queues.end();
    }
}
