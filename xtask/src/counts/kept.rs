//! The counts that the repository keeps, and how those of today compare.

use anyhow::{Context, Result, bail};
use std::fmt;
use std::path::Path;

/// By how much a count may differ from the kept one, in percent.
const TOLERANCE_PERCENT: u64 = 5;

const ABOUT: &str = "\
# Instructions of small pieces of the data path, as callgrind counts them on a machine like the one
# named here: what the quarter of 64 calls that take the fewest do not exceed. `cargo xtask test`
# fails when one takes 5 % more; `cargo xtask counts --accept` keeps the counts of today. Valgrind
# shows programs no AVX-512, so the ICRC is counted as its general routine makes it, by PCLMULQDQ.
";

/// What a piece is called and how many instructions it takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    pub name: String,
    pub count: u64,
}

impl Piece {
    /// What the quarter of the calls that take the fewest do not exceed: a call that a timer comes
    /// due in, or that a queue or a bin of the allocator begins anew in, takes more or less than
    /// the others, and which one that is the clock decides.
    pub fn of_calls(name: &str, counts: impl Iterator<Item = u64>) -> Piece {
        let mut counts: Vec<u64> = counts.collect();
        counts.sort_unstable();
        let count = counts.get(counts.len() / 4).copied().unwrap_or_default();
        Piece { name: name.to_owned(), count }
    }
}

/// The file: whose counts they are, and the pieces.
pub struct Kept {
    pub machine: String,
    pub pieces: Vec<Piece>,
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{ABOUT}\nmachine: {}", self.machine)?;
        self.pieces.iter().try_for_each(|piece| writeln!(f, "{}: {}", piece.name, piece.count))
    }
}

impl Kept {
    /// Reads the file.
    ///
    /// # Errors
    /// When it cannot be read, or a line of it is no entry.
    pub fn read(file: &Path) -> Result<Kept> {
        let text = std::fs::read_to_string(file);
        let about = || file.display().to_string();
        Kept::parse(&text.with_context(about)?).with_context(about)
    }

    fn parse(text: &str) -> Result<Kept> {
        let mut kept = Kept { machine: String::new(), pieces: Vec::new() };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match line.rsplit_once(": ") {
                Some(("machine", machine)) => kept.machine = machine.to_owned(),
                Some((name, count)) => {
                    let count = count.parse().with_context(|| line.to_owned())?;
                    kept.pieces.push(Piece { name: name.to_owned(), count });
                }
                None => bail!("{line} is not `NAME: COUNT`"),
            }
        }
        Ok(kept)
    }

    /// What is to say of each piece that there is, and of those that are gone.
    pub fn judge(&self, now: &[Piece]) -> Vec<Verdict> {
        let find = |pieces: &[Piece], name: &str| {
            pieces.iter().find(|piece| piece.name == name).map(|piece| piece.count)
        };
        let today = now.iter().map(|piece| Verdict {
            name: piece.name.clone(),
            before: find(&self.pieces, &piece.name),
            now: Some(piece.count),
        });
        let gone = self.pieces.iter().filter(|piece| find(now, &piece.name).is_none());
        let gone = gone.map(|piece| Verdict {
            name: piece.name.clone(),
            before: Some(piece.count),
            now: None,
        });
        today.chain(gone).collect()
    }
}

/// One piece: its kept count and today's.
pub struct Verdict {
    name: String,
    before: Option<u64>,
    now: Option<u64>,
}

impl Verdict {
    /// By how much it takes more, in percent.
    fn growth_percent(&self) -> Option<f64> {
        let (before, now) = (self.before? as f64, self.now? as f64);
        Some((now / before.max(1.0) - 1.0) * 100.0)
    }

    /// Whether it is kept and takes not notably more.
    pub fn is_well(&self) -> bool {
        let grown = |(before, now): (u64, u64)| now * 100 > before * (100 + TOLERANCE_PERCENT);
        self.before.zip(self.now).is_some_and(|both| !grown(both))
    }

    /// Whether it takes notably less than is kept.
    fn shrank(&self) -> bool {
        let shrunk = |(before, now): (u64, u64)| now * 100 < before * (100 - TOLERANCE_PERCENT);
        self.before.zip(self.now).is_some_and(shrunk)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (self.before, self.now, self.growth_percent()) {
            (Some(before), Some(now), Some(growth)) if !self.is_well() || self.shrank() => {
                write!(f, "  {name}: {now}, which was {before} before: {growth:+.1} %")?;
                if self.shrank() { write!(f, ". Keep that by {}", super::ACCEPT) } else { Ok(()) }
            }
            (Some(_), Some(now), _) => write!(f, "  {name}: {now}"),
            (None, Some(now), _) => write!(f, "  {name}: {now}, not kept yet"),
            _ => write!(f, "  {name}: kept, but counted no more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(name: &str, count: u64) -> Piece {
        Piece { name: name.to_owned(), count }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let pieces = vec![piece("a post, by packets", 1200), piece("a poll", 7)];
        let kept = Kept { machine: "x86_64, glibc 2.36".to_owned(), pieces: pieces.clone() };
        let read = Kept::parse(&kept.to_string()).unwrap();
        assert_eq!((read.machine, read.pieces), (kept.machine, pieces));
        assert!(Kept::parse("a post").is_err() && Kept::parse("a post: many").is_err());
    }

    #[test]
    fn growth_beyond_the_tolerance_is_not_well() {
        let kept = Kept { machine: String::new(), pieces: vec![piece("a", 1000)] };
        let judged = |count| kept.judge(&[piece("a", count)]).remove(0);
        assert!(judged(1050).is_well() && judged(100).is_well() && !judged(1051).is_well());
        let words = judged(1200).to_string();
        assert!(words.contains("a: 1200, which was 1000 before: +20.0 %"), "{words}");
        assert!(judged(900).to_string().contains("-10.0 %. Keep that"));
    }

    #[test]
    fn what_is_new_or_gone_is_not_well() {
        let kept = Kept { machine: String::new(), pieces: vec![piece("old", 1)] };
        let verdicts = kept.judge(&[piece("new", 1)]);
        assert_eq!(verdicts.len(), 2);
        assert!(verdicts.iter().all(|verdict| !verdict.is_well()));
    }

    #[test]
    fn the_lower_quarter_of_the_calls_counts() {
        let calls = [9, 5, 6, 90, 6, 6, 9, 9];
        assert_eq!(Piece::of_calls("a", calls.into_iter()), piece("a", 6));
    }
}
