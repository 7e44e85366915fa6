//! Every suite, with one closing line of totals: in order, and beside them those that need not
//! wait for one another.

mod beside;
mod lanes;
mod list;
mod one;

use crate::allowed::{self, Allowed};
use crate::failures::Failure;
use crate::rules;
use crate::totals::{Outcome, Skip, Totals};
use anyhow::{Context, Result, bail};
use list::{Lane, SUITES, Suite};
use std::path::Path;
use std::sync::mpsc::channel;

/// The suite that calls nothing.
const RULES: &str = "rules";

/// What to run, and how strictly.
#[derive(Default)]
pub struct Wanted {
    /// Only suites whose name contains this.
    pub only: Option<String>,
    /// A skipped test that `tests/allowed-skips.txt` does not name is a failure.
    pub strict: bool,
    /// What suites need beside packages is fetched or built where it is missing.
    pub install: bool,
}

/// What came of the suites so far.
#[derive(Default)]
struct Sums {
    totals: Totals,
    skips: Vec<Skip>,
    failures: Vec<Failure>,
}

impl Sums {
    fn add(&mut self, name: &str, outcome: Outcome) {
        let Outcome { totals, skips, failures } = outcome;
        self.totals.add(totals);
        self.skips.extend(skips);
        let own = failures.is_empty() && totals.failed > 0;
        self.failures.extend(own.then(|| Failure::of_suite(name)));
        self.failures.extend(failures);
    }
}

impl Wanted {
    /// Whether the suite of this name is one of them.
    pub fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.contains(only))
    }
}

/// Runs the suites that are wanted; true when something passed, nothing failed and nothing was
/// skipped that may not be.
///
/// # Errors
/// When there is no such suite, or one cannot be run at all.
pub fn run_all(wanted: &Wanted) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let names: Vec<&str> =
        [RULES].into_iter().chain(SUITES.iter().map(|suite| suite.name)).collect();
    if let Some(only) =
        wanted.only.as_deref().filter(|_| !names.iter().any(|name| wanted.wants(name)))
    {
        bail!("no suite is called {only}; there are: {}", names.join(", "));
    }
    let allowed = Allowed::read(root)?;
    let mut sums = Sums::default();
    if wanted.wants(RULES) {
        let totals = house_rules(root, &allowed);
        sums.add(RULES, Outcome { totals, skips: Vec::new(), failures: Vec::new() });
    }
    run_suites(root, wanted, &mut sums)?;
    println!();
    // Once more, where it is found: a run prints thousands of lines.
    sums.failures.iter().for_each(|failure| print!("{failure}"));
    let not_named = if wanted.strict { allowed.not_named(&sums.skips) } else { Vec::new() };
    for skip in &not_named {
        println!("may not be skipped ({}): {}: {}", allowed::FILE, skip.test, skip.reason);
    }
    let Totals { passed, failed, skipped } = sums.totals;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(sums.totals.is_success() && not_named.is_empty())
}

fn run_suites(root: &Path, wanted: &Wanted, sums: &mut Sums) -> Result<()> {
    let wants = |suite: &&Suite| wanted.wants(suite.name);
    let (beside, in_order): (Vec<&Suite>, Vec<&Suite>) =
        SUITES.iter().filter(wants).partition(|suite| suite.lane == Lane::Beside);
    let mut take = |ended: beside::Ended| -> Result<()> {
        print!("{}", ended.said);
        sums.add(ended.suite.name, ended.outcome?);
        Ok(())
    };
    std::thread::scope(|scope| {
        let (sender, ended) = channel();
        let start = |suites| beside::start(scope, root, wanted.install, suites, sender.clone());
        start(beside);
        for suite in in_order {
            if suite.lane == Lane::Along {
                start(vec![suite]);
                continue;
            }
            let outcome = suite.run(root, wanted.install, &mut |line| println!("{line}"))?;
            take(beside::Ended { suite, said: String::new(), outcome: Ok(outcome) })?;
            ended.try_iter().try_for_each(&mut take)?;
        }
        drop(sender);
        ended.iter().try_for_each(&mut take)
    })
}

fn house_rules(root: &Path, allowed: &Allowed) -> Totals {
    println!("==> {RULES}");
    let mut totals = Totals::default();
    for (rule, broken) in rules::check(root, allowed) {
        println!("  {rule}: {}", if broken.is_empty() { "ok" } else { "broken" });
        broken.iter().for_each(|line| println!("    {line}"));
        totals.add(Totals::check(broken.is_empty()));
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_suite_has_is_refused_with_the_names() {
        let wanted = Wanted { only: Some("sytem".to_owned()), ..Wanted::default() };
        let error = run_all(&wanted).unwrap_err().to_string();
        assert!(
            error.contains("sytem") && error.contains("rules") && error.contains("system"),
            "{error}"
        );
    }

    #[test]
    fn the_list_of_allowed_skips_is_well_formed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        Allowed::read(root).unwrap();
    }
}
