//! Measurements that take turns, round by round, and what each is compared with.

use super::table::{Aim, Row, Table};
use anyhow::{Result, ensure};

/// So often a measurement is tried before it has failed: perftest has no figure where it could not
/// tell how fast the processor's clock is, which a busy host makes it.
const TRIES: u32 = 3;

/// Something that gives one figure a round, or several.
struct Measurement<'a> {
    take: Box<dyn Fn() -> Result<Vec<f64>> + 'a>,
    entries: Vec<Entry>,
    /// Why it is not taken any more.
    failure: Option<String>,
}

/// One of the figures.
struct Entry {
    name: String,
    unit: &'static str,
    figures: Vec<f64>,
    comparisons: Vec<(Id, Option<Aim>)>,
    aim: Option<Aim>,
}

/// A figure, by its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id(usize, usize);

/// All that takes turns.
#[derive(Default)]
pub struct Contest<'a>(Vec<Measurement<'a>>);

impl<'a> Contest<'a> {
    /// Something that gives one figure.
    pub fn add(
        &mut self,
        name: impl Into<String>,
        unit: &'static str,
        take: impl Fn() -> Result<f64> + 'a,
    ) -> Id {
        self.add_several(vec![(name.into(), unit)], move || Ok(vec![take()?]))[0]
    }

    /// Something that gives a figure for each of these names, with its unit.
    pub fn add_several(
        &mut self,
        names: Vec<(String, &'static str)>,
        take: impl Fn() -> Result<Vec<f64>> + 'a,
    ) -> Vec<Id> {
        let at = self.0.len();
        let ids = (0..names.len()).map(|index| Id(at, index)).collect();
        let entry = |(name, unit)| {
            let (figures, comparisons) = (Vec::new(), Vec::new());
            Entry { name, unit, figures, comparisons, aim: None }
        };
        let entries = names.into_iter().map(entry).collect();
        self.0.push(Measurement { take: Box::new(take), entries, failure: None });
        ids
    }

    /// Compares one with another, in a row of its own.
    pub fn compare(&mut self, id: Id, peer: Id, aim: impl Into<Option<Aim>>) {
        self.0[id.0].entries[id.1].comparisons.push((peer, aim.into()));
    }

    /// Gives one an aim that needs no peer.
    pub fn aim(&mut self, id: Id, aim: Aim) {
        self.0[id.0].entries[id.1].aim = Some(aim);
    }

    /// Measures it all, round by round. What fails is not tried in the rounds behind, and its row
    /// says why.
    pub fn run(&mut self, rounds: u32) {
        for round in 0..rounds {
            eprintln!("round {} of {rounds}", round + 1);
            for measurement in &mut self.0 {
                measurement.turn();
            }
        }
    }

    /// The ratio of one to another, as a row would have it.
    pub fn ratio(&self, id: Id, peer: Id) -> Option<f64> {
        let row = Row::plain("", "", self.entry(id).figures.clone());
        row.ratio_to(&self.entry(peer).figures).ratio()
    }

    fn entry(&self, id: Id) -> &Entry {
        &self.0[id.0].entries[id.1]
    }

    /// Everything that was measured, and beside each figure those that it is compared with.
    pub fn table(&self, against: &'static str) -> Table {
        let entries = self.0.iter().flat_map(|of| of.entries.iter().map(move |entry| (of, entry)));
        let rows = entries.flat_map(|(of, entry)| self.rows(entry, of.failure.as_ref()));
        Table { against, rows: rows.collect() }
    }

    fn rows(&self, entry: &Entry, failure: Option<&String>) -> Vec<Row> {
        let row = |name: String| {
            Row::plain(name, entry.unit, entry.figures.clone()).unless(failure.cloned())
        };
        if entry.comparisons.is_empty() {
            return vec![row(entry.name.clone()).aims(entry.aim)];
        }
        let compared = |(peer, aim): &(Id, Option<Aim>)| {
            let peer = self.entry(*peer);
            // Half of its rounds are none to divide by.
            let failed = peer.figures.len() < entry.figures.len();
            let figures = if failed { &[][..] } else { &peer.figures };
            row(format!("{}, beside {}", entry.name, peer.name)).ratio_to(figures).aims(*aim)
        };
        entry.comparisons.iter().map(compared).collect()
    }
}

impl Measurement<'_> {
    fn turn(&mut self) {
        if self.failure.is_some() {
            return;
        }
        match self.taken() {
            Ok(figures) => {
                for (entry, figure) in self.entries.iter_mut().zip(figures) {
                    entry.figures.push(figure);
                }
            }
            Err(error) => {
                let text = format!("{error:#}");
                eprintln!("{text}");
                self.failure = Some(text.lines().next().unwrap_or_default().to_owned());
            }
        }
    }

    fn taken(&self) -> Result<Vec<f64>> {
        let mut answer = self.once();
        for _ in 1..TRIES {
            if answer.is_ok() {
                break;
            }
            answer = self.once();
        }
        answer
    }

    fn once(&self) -> Result<Vec<f64>> {
        let figures = (self.take)()?;
        let good = figures.len() == self.entries.len()
            && figures.iter().all(|figure| figure.is_finite() && *figure > 0.0);
        ensure!(good, "no figures but {figures:?}");
        Ok(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn figures_of_one_round_are_compared() {
        let turn = Cell::new(0.0);
        let next = || turn.replace(turn.get() + 1.0) + 1.0;
        let mut contest = Contest::default();
        let peer = contest.add("a peer", "us", || Ok(next()));
        let ours = contest.add("ours", "us", || Ok(next()));
        contest.compare(ours, peer, Aim::RatioAtMost(1.0));
        contest.run(3);
        assert_eq!(contest.entry(peer).figures, [1.0, 3.0, 5.0], "they take turns");
        let table = contest.table("ratio");
        let names: Vec<&str> = table.rows.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["a peer", "ours, beside a peer"]);
        assert_eq!(table.rows[1].ratio(), Some(4.0 / 3.0));
        assert_eq!(table.rows[1].is_missed(), Some(true));
    }

    #[test]
    fn what_fails_has_no_figures_and_is_no_peer() {
        let tries = Cell::new(0);
        let mut contest = Contest::default();
        let peer = contest.add("a peer", "us", || {
            tries.set(tries.get() + 1);
            anyhow::bail!("not installed")
        });
        let ours = contest
            .add_several(vec![("one".into(), "us"), ("two".into(), "us")], || Ok(vec![1.0, 2.0]));
        contest.compare(ours[1], peer, Aim::RatioAtMost(1.0));
        contest.run(2);
        assert_eq!(tries.get(), TRIES, "a round behind does not try it again");
        let rows = contest.table("ratio").rows;
        assert_eq!((rows[0].figures.len(), rows[2].figures.len()), (0, 2));
        assert_eq!((rows[2].ratio(), rows[2].is_missed()), (None, None));
    }
}
