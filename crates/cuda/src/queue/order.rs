//! The order between the lines of a context (CUDA C++ Programming Guide, default stream): work of
//! the legacy default stream comes after all that blocking streams were given before, and what they
//! are given after it comes after it.

use super::line::{Line, Point, Work};
use engine_thread::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::thread::ThreadId;

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

#[derive(Default)]
struct Lines {
    legacy: Arc<Line>,
    threads: HashMap<ThreadId, Arc<Line>>,
    blocking: Vec<Weak<Line>>,
    apart: Vec<Weak<Line>>,
}

impl Lines {
    /// The line of a kind.
    fn line(&mut self, kind: &Kind) -> Arc<Line> {
        match kind {
            Kind::Legacy => self.legacy.clone(),
            Kind::PerThread => self.threads.entry(std::thread::current().id()).or_default().clone(),
            Kind::Blocking(line) | Kind::Apart(line) => line.clone(),
        }
    }

    fn blocking(&mut self) -> Vec<Arc<Line>> {
        self.blocking.retain(|line| line.strong_count() > 0);
        let made = self.blocking.iter().filter_map(Weak::upgrade);
        made.chain(self.threads.values().cloned()).collect()
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

    /// Queues work behind what it has to come after.
    pub fn queue(&self, kind: &Kind, work: Work) -> Point {
        let mut lines = lock(&self.lines);
        let line = lines.line(kind);
        for point in lines.before(kind) {
            line.queue(Box::new(move || point.wait()));
        }
        line.queue(work)
    }

    /// The place behind everything that work of this kind would come after.
    pub fn last(&self, kind: &Kind) -> Point {
        let mut lines = lock(&self.lines);
        let line = lines.line(kind);
        let before = lines.before(kind);
        if before.is_empty() {
            return line.last();
        }
        for point in before {
            line.queue(Box::new(move || point.wait()));
        }
        line.last()
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
