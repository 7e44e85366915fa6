//! What a run of suites counts, and when it is a success.

use crate::failures::{Failure, Report};
use std::collections::BTreeMap;

/// Numbers of tests.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Totals {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Totals {
    /// One check that is no test of a harness.
    pub fn check(ok: bool) -> Totals {
        Totals { passed: ok.into(), failed: (!ok).into(), skipped: 0 }
    }

    pub fn add(&mut self, other: Totals) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Whether something was tried and nothing failed: a run that skipped everything has shown
    /// nothing.
    pub fn is_success(self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

/// What the test programs of one cargo call say.
#[derive(Default)]
pub struct Harness {
    totals: Totals,
    programs: u64,
    /// Tests that failed and tests that are marked `#[ignore]`, by name.
    failed: Vec<String>,
    ignored: Vec<String>,
    report: Report,
}

/// What came of the test programs of one cargo call.
pub struct Outcome {
    pub totals: Totals,
    pub skips: Vec<Skip>,
    pub failures: Vec<Failure>,
}

impl Harness {
    /// Reads one line of their output.
    pub fn line(&mut self, line: &str) {
        self.report.line(line);
        if let Some(counts) = closing_line(line) {
            self.totals.add(counts);
            self.programs += 1;
        } else if let Some((name, outcome)) = test_line(line) {
            match outcome.split(',').next() {
                Some("FAILED") => self.failed.push(name.to_owned()),
                Some("ignored") => self.ignored.push(name.to_owned()),
                _ => {}
            }
        }
    }

    /// One more failure: the watchdog ended a program.
    pub fn ended_for_silence(&mut self) {
        self.totals.failed += 1;
    }

    /// The totals, with what the tests noted as skipped (`PROGRAM::TEST: REASON`), which their
    /// harness takes for passed, all that was skipped and all that failed. `ok` is how cargo ended.
    pub fn finish(mut self, ok: bool, noted: &str) -> Outcome {
        if !ok && self.totals.failed == 0 {
            // A test program died without its closing line, or nothing was built.
            self.totals.failed = 1;
        }
        // A test may note several parts of it; one that failed in the end has failed.
        let mut skips = BTreeMap::new();
        for skip in noted.lines().filter_map(Skip::of_note) {
            if !self.failed.iter().any(|failed| skip.test.ends_with(&format!("::{failed}"))) {
                skips.entry(skip.test.clone()).or_insert(skip);
            }
        }
        let noted = skips.len() as u64;
        self.totals.passed = self.totals.passed.saturating_sub(noted);
        self.totals.skipped += noted;
        let ignored = self.ignored.into_iter();
        let ignored = ignored.map(|test| Skip { test, reason: "marked #[ignore]".to_owned() });
        Outcome {
            totals: self.totals,
            skips: skips.into_values().chain(ignored).collect(),
            failures: self.report.finish(self.failed),
        }
    }

    /// Whether a test program came to its end.
    pub fn ran(&self) -> bool {
        self.programs > 0
    }
}

/// A skipped test, `PROGRAM::TEST` (only `TEST` where it is marked `#[ignore]`), and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skip {
    pub test: String,
    pub reason: String,
}

impl Skip {
    /// Reads `PROGRAM::TEST: REASON`.
    fn of_note(line: &str) -> Option<Skip> {
        let (test, reason) = line.split_once(": ")?;
        Some(Skip { test: test.to_owned(), reason: reason.to_owned() })
    }
}

/// Counts of a test program's closing line.
fn closing_line(line: &str) -> Option<Totals> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let mut totals = Totals::default();
    for part in counts.split("; ") {
        let (count, what) = part.split_once(' ')?;
        let Ok(count) = count.parse::<u64>() else { continue };
        match what {
            "passed" => totals.passed = count,
            "failed" => totals.failed = count,
            "ignored" => totals.skipped = count,
            _ => {}
        }
    }
    Some(totals)
}

/// Name and outcome of a test's own line.
fn test_line(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("test ")?.rsplit_once(" ... ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn harness(lines: &[&str]) -> Harness {
        let mut harness = Harness::default();
        lines.iter().for_each(|line| harness.line(line));
        harness
    }

    #[test]
    fn reads_a_closing_line() {
        let line = "test result: ok. 12 passed; 1 failed; 2 ignored; 0 measured; 3 filtered out; \
                    finished in 0.01s";
        assert_eq!(closing_line(line), Some(Totals { passed: 12, failed: 1, skipped: 2 }));
        assert_eq!(closing_line("test foo ... ok"), None);
    }

    #[test]
    fn a_noted_skip_is_no_pass() {
        let read = harness(&[
            "test a ... ok",
            "test b ... ok",
            "test result: ok. 2 passed; 0 failed; 0 ignored",
        ]);
        let Outcome { totals, skips, .. } =
            read.finish(true, "program::b: no root\nprogram::b: no tshark\n");
        assert_eq!(totals, Totals { passed: 1, failed: 0, skipped: 1 });
        assert_eq!((skips.len(), &*skips[0].test, &*skips[0].reason), (1, "program::b", "no root"));
    }

    #[test]
    fn what_failed_after_a_note_has_failed() {
        let read = harness(&[
            "test m::a ... FAILED",
            "test result: FAILED. 3 passed; 1 failed; 0 ignored",
        ]);
        let Outcome { totals, skips, failures } = read.finish(false, "program::m::a: no python\n");
        assert_eq!((totals, skips.len()), (Totals { passed: 3, failed: 1, skipped: 0 }, 0));
        assert_eq!(failures, [Failure { test: "m::a".to_owned(), said: Vec::new() }]);
    }

    #[test]
    fn an_ignored_test_is_a_skip_with_a_name() {
        let read = harness(&[
            "test slow ... ignored, a measurement",
            "test result: ok. 0 passed; 0 failed; 1 ignored",
        ]);
        let Outcome { totals, skips, .. } = read.finish(true, "");
        assert_eq!(
            (totals, &*skips[0].test),
            (Totals { passed: 0, failed: 0, skipped: 1 }, "slow")
        );
        assert!(!totals.is_success(), "nothing was tried");
    }

    #[test]
    fn a_program_that_died_is_a_failure() {
        let read = harness(&["test a ... ok"]);
        assert!(!read.ran());
        assert_eq!(read.finish(false, "").totals, Totals::check(false));
    }

    #[test]
    fn nothing_tried_is_no_success() {
        assert!(!Totals { passed: 0, failed: 0, skipped: 9 }.is_success());
        assert!(!Totals { passed: 9, failed: 1, skipped: 0 }.is_success());
        assert!(Totals { passed: 1, failed: 0, skipped: 9 }.is_success());
    }
}
