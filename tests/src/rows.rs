//! Programs that judge themselves (`tests/c/rows.h`): a line `ok …` or `NOT …` for each row, the
//! totals at the end.

use crate::{Finished, Run};
use std::time::Duration;

/// What each may take at least.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs such a program: all rows right, and at least as many as it had when the test was written.
///
/// # Panics
/// When a row is wrong, rows are missing, or the program did not end with 0: that is a failed test.
#[track_caller]
pub fn judged(run: Run, least: u32) -> Finished {
    let finished = run.at_least(LIMIT).finish();
    let wrong: Vec<&str> = finished.stdout.lines().filter(|l| l.starts_with("NOT")).collect();
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), finished.stderr);
    let finished = finished.ok();
    let rows = rows(&finished);
    assert!(rows >= least, "{rows} rows instead of {least}: {finished}");
    finished
}

/// Number of rows of a program that judges itself.
pub fn rows(finished: &Finished) -> u32 {
    let totals = finished.stdout.lines().last().unwrap_or_default();
    totals.split(' ').next().and_then(|rows| rows.parse().ok()).unwrap_or(0)
}
