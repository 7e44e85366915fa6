//! rdma-core's own test suite, unmodified, one process a test.
//!
//! `conformance/exceptions.txt` names every generic test that does not pass and why. It cannot rot in either direction: a
//! listed test that passes fails this one, and so does an unlisted one that does not. A pass counts only if our counters
//! moved where the test moves data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;
use system::{Run, skip};
use tempfile::TempDir;

const SUITE: &str = "/usr/share/doc/rdma-core/tests";
const PYTHON: &str = "/usr/bin/python3";
/// Tests of the suite that are no single vendor's (rdma-core 44).
const LEAST_PASSES: usize = 90;

#[derive(Clone, Debug)]
struct Case {
    id: String,
    moves_data: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Outcome {
    Passed,
    /// Skipped itself, failed, crashed, hung, or passed without moving data; in words.
    Not(String),
}

/// A copy of the suite that Python can import.
fn unpack() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let copy = format!(
        "cp -r {SUITE} '{0}/tests' && gunzip -f '{0}'/tests/*.gz && chmod -R a+rX '{0}'",
        folder.path().display()
    );
    let status = Command::new("sh").args(["-c", &copy]).status().expect("a shell");
    assert!(status.success(), "the suite cannot be copied from {SUITE}");
    folder
}

fn generic_cases(folder: &Path) -> Vec<Case> {
    let lister = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/list_tests.py");
    let output = Command::new(PYTHON).arg(lister).current_dir(folder).output().expect("python3");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let vendor = ["tests.test_mlx5", "tests.test_efa"];
    text.lines()
        .filter(|line| !vendor.iter().any(|prefix| line.starts_with(prefix)))
        .filter_map(|line| line.split_once(' '))
        .map(|(id, kind)| Case { id: id.to_owned(), moves_data: kind == "moves" })
        .collect()
}

fn run(folder: &Path, case: &Case) -> Outcome {
    let counters = tempfile::NamedTempFile::new().expect("a temporary file");
    let script = format!(
        "cd {} && exec {PYTHON} tests/run_tests.py --dev peerdma0 --port 1 --gid 0 -v {}",
        folder.display(),
        case.id
    );
    let ended = Run::hca("sh -c")
        .arg(script)
        .env("PEERDMA_COUNTERS", counters.path())
        .limit(Duration::from_secs(60))
        .finish();
    if ended.timed_out {
        return Outcome::Not("hangs".into());
    }
    let closing = ended.stderr.lines().rev().find(|line| {
        line.starts_with("OK") || line.starts_with("FAILED") || line.starts_with("NO TESTS")
    });
    match closing {
        Some("OK") if case.moves_data && !moved(counters.path()) => {
            Outcome::Not("passes without moving a byte".into())
        }
        Some("OK") => Outcome::Passed,
        Some(line) if line.starts_with("OK (skipped") => Outcome::Not(reason(&ended.stderr)),
        Some(_) => Outcome::Not(format!("fails: {}", reason(&ended.stderr))),
        None => Outcome::Not(format!("crashes: {:?}", ended.status)),
    }
}

/// Whether a process of the test sent or received a packet.
fn moved(counters: &Path) -> bool {
    let text = std::fs::read_to_string(counters).unwrap_or_default();
    text.lines().any(|line| {
        line.strip_prefix("sent_pkts ").and_then(|n| n.parse::<u64>().ok()).is_some_and(|n| n > 0)
    })
}

fn reason(stderr: &str) -> String {
    let line = stderr
        .lines()
        .find(|line| line.contains("skipped '"))
        .or_else(|| stderr.lines().rev().find(|line| line.contains("Error")));
    line.unwrap_or("no reason given").trim().to_owned()
}

fn exceptions() -> BTreeMap<String, String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/exceptions.txt");
    std::fs::read_to_string(file)
        .expect("conformance/exceptions.txt")
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .filter_map(|line| line.split_once(char::is_whitespace))
        .map(|(id, why)| (id.to_owned(), why.trim().to_owned()))
        .collect()
}

fn run_all(folder: &Path, cases: &[Case]) -> Vec<(Case, Outcome)> {
    let queue = Mutex::new(cases.iter());
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(case) = queue.lock().expect("the queue").next() else { break };
                    let outcome = run(folder, case);
                    results.lock().expect("the results").push((case.clone(), outcome));
                }
            });
        }
    });
    let mut results = results.into_inner().expect("the results");
    results.sort_by(|a, b| a.0.id.cmp(&b.0.id));
    results
}

#[test]
fn the_generic_suite() {
    if !PathBuf::from(SUITE).is_dir() {
        skip!("{SUITE} is missing (package rdma-core)");
    }
    let pyverbs = Command::new(PYTHON).args(["-c", "import pyverbs"]).output();
    if !pyverbs.is_ok_and(|output| output.status.success()) {
        skip!("pyverbs is missing (package python3-pyverbs)");
    }
    let folder = unpack();
    let mut cases = generic_cases(folder.path());
    assert!(cases.len() > 150, "only {} tests were listed", cases.len());
    if let Ok(only) = std::env::var("PEERDMA_CONFORMANCE") {
        cases.retain(|case| case.id.contains(&only));
    }
    let whole = std::env::var_os("PEERDMA_CONFORMANCE").is_none();
    let exceptions = exceptions();
    let results = run_all(folder.path(), &cases);
    let mut wrong = Vec::new();
    let mut passes = 0;
    for (case, outcome) in &results {
        passes += usize::from(*outcome == Outcome::Passed);
        match (outcome, exceptions.get(&case.id)) {
            (Outcome::Passed, Some(why)) => {
                wrong.push(format!("{} passes but is listed: {why}", case.id));
            }
            (Outcome::Not(what), None) => wrong.push(format!("{} {what}", case.id)),
            (Outcome::Not(what), Some(_)) if what == "hangs" || what.starts_with("crashes") => {
                wrong.push(format!("{} {what}", case.id));
            }
            _ => {}
        }
    }
    let unknown = exceptions.keys().filter(|id| !cases.iter().any(|case| case.id == **id));
    if whole {
        wrong.extend(unknown.map(|id| format!("{id} is listed but does not exist")));
    }
    eprintln!("{passes} of {} generic tests pass", cases.len());
    assert!(wrong.is_empty(), "{passes} pass; {} surprises:\n{}", wrong.len(), wrong.join("\n"));
    assert!(!whole || passes >= LEAST_PASSES, "only {passes} pass");
}
