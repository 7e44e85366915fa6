//! What failed, and what it said, gathered from the output of test programs to be shown where a
//! run ends.

use std::collections::BTreeMap;
use std::fmt;

/// Lines shown of one test, from the end of what it said.
const SHOWN: usize = 80;

/// A test that failed, or a suite that did without one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    pub test: String,
    /// Its own lines, without backtraces.
    pub said: Vec<String>,
}

impl Failure {
    /// A suite whose own output says what is wrong.
    pub fn of_suite(name: &str) -> Failure {
        Failure { test: format!("{name} (see ==> {name} above)"), said: Vec::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "failed: {}", self.test)?;
        let left_out = self.said.len().saturating_sub(SHOWN);
        if left_out > 0 {
            writeln!(f, "    ({left_out} lines before)")?;
        }
        self.said[left_out..].iter().try_for_each(|line| writeln!(f, "    {line}"))
    }
}

/// Reads the sections `---- TEST stdout ----` of the test harness.
#[derive(Default)]
pub struct Report {
    said: BTreeMap<String, Vec<String>>,
    /// The test whose section this is.
    current: Option<String>,
    in_backtrace: bool,
}

impl Report {
    /// Reads one line of output.
    pub fn line(&mut self, line: &str) {
        let heading = line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"));
        if let Some(test) = heading {
            (self.current, self.in_backtrace) = (Some(test.to_owned()), false);
            return;
        }
        let Some(test) = &self.current else { return };
        if line == "failures:" || line.starts_with("test result: ") {
            self.current = None;
            return;
        }
        match line {
            "stack backtrace:" => self.in_backtrace = true,
            // The frames are numbered, each with its place on a line of its own.
            _ if !line.starts_with(' ') => self.in_backtrace = false,
            _ => {}
        }
        if !self.in_backtrace && !line.is_empty() {
            self.said.entry(test.clone()).or_default().push(line.to_owned());
        }
    }

    /// What each of these tests said.
    pub fn finish(mut self, failed: Vec<String>) -> Vec<Failure> {
        let said = |test: &String| self.said.remove(test).unwrap_or_default();
        let said: Vec<_> = failed.iter().map(said).collect();
        failed.into_iter().zip(said).map(|(test, said)| Failure { test, said }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
test m::a ... FAILED
test b ... ok

failures:

---- m::a stdout ----

thread 'm::a' panicked at src/lib.rs:1:1:
riostream: ended with 1
  an indented line of its
stack backtrace:
   0: rust_begin_unwind
             at /rustc/library/std/src/panicking.rs:689:5
note: Some details are omitted


failures:
    m::a

test result: FAILED. 1 passed; 1 failed; 0 ignored
";

    fn read(lines: &str) -> Report {
        let mut report = Report::default();
        lines.lines().for_each(|line| report.line(line));
        report
    }

    #[test]
    fn a_failure_says_what_its_test_said_without_the_backtrace() {
        let failures = read(OUTPUT).finish(vec!["m::a".to_owned()]);
        assert_eq!(
            failures[0].to_string(),
            "failed: m::a\n    thread 'm::a' panicked at src/lib.rs:1:1:\n    riostream: ended \
             with 1\n      an indented line of its\n    note: Some details are omitted\n"
        );
    }

    #[test]
    fn who_says_much_is_cut_at_the_front() {
        let said = (0..SHOWN + 2).map(|n| n.to_string()).collect();
        let shown = Failure { test: "a".to_owned(), said }.to_string();
        assert!(shown.starts_with("failed: a\n    (2 lines before)\n    2\n"), "{shown}");
    }

    #[test]
    fn a_test_that_was_ended_has_a_name_all_the_same() {
        let failures = read("test c ... FAILED\n").finish(vec!["c".to_owned()]);
        assert_eq!(failures, [Failure { test: "c".to_owned(), said: Vec::new() }]);
    }
}
