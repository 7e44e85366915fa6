//! `tests/allowed-skips.txt`: tests and suites that CI may skip, each with the reason.

use crate::totals::Skip;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::Path;

/// The list, from the workspace's root.
pub const FILE: &str = "tests/allowed-skips.txt";

/// Stands where a test has its program, for a whole suite that may be skipped.
pub const SUITE: &str = "suite::";

/// Tests that may be skipped, and why.
#[derive(Default)]
pub struct Allowed(BTreeMap<String, String>);

impl Allowed {
    /// Reads the list of the workspace at `root`.
    ///
    /// # Errors
    /// When it cannot be read, or a line of it is no entry.
    pub fn read(root: &Path) -> Result<Allowed> {
        let text = std::fs::read_to_string(root.join(FILE)).context(FILE)?;
        Allowed::parse(&text).context(FILE)
    }

    fn parse(text: &str) -> Result<Allowed> {
        let mut entries = BTreeMap::new();
        for (line, number) in text.lines().zip(1..) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let entry = line
                .split_once(": ")
                .filter(|(test, reason)| test.contains("::") && !reason.trim().is_empty());
            let Some((test, reason)) = entry else {
                bail!("line {number} is not `PROGRAM::TEST: REASON`: {line}");
            };
            if entries.insert(test.to_owned(), reason.to_owned()).is_some() {
                bail!("line {number} names {test} again");
            }
        }
        Ok(Allowed(entries))
    }

    /// What was skipped without being named here.
    pub fn not_named<'a>(&self, skips: &'a [Skip]) -> Vec<&'a Skip> {
        skips.iter().filter(|skip| !self.0.contains_key(&skip.test)).collect()
    }

    /// The tests named here.
    pub fn tests(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_named_may_be_skipped() {
        let allowed = Allowed::parse("# GPUs\n\ncuda::copies: needs a GPU\n").unwrap();
        let skip = |test: &str| Skip { test: test.to_owned(), reason: "no GPU".to_owned() };
        let skips = [skip("cuda::copies"), skip("cuda::others"), skip("copies")];
        let rest: Vec<_> = allowed.not_named(&skips).into_iter().map(|skip| &*skip.test).collect();
        assert_eq!(rest, ["cuda::others", "copies"]);
    }

    #[test]
    fn an_entry_has_a_reason_and_stands_once() {
        for wrong in ["cuda::copies", "cuda::copies:", "cuda::copies: ", "a::b: c\na::b: d\n"] {
            assert!(Allowed::parse(wrong).is_err(), "{wrong}");
        }
    }

    /// A skip is noted with its program, so an entry without one would never match.
    #[test]
    fn an_entry_names_its_program() {
        assert!(Allowed::parse("copies: needs a GPU\n").is_err());
        assert!(Allowed::parse("cuda::copies: needs a GPU\n").is_ok());
    }
}
