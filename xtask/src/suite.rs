//! Every suite in order, with one closing line of totals.

use crate::rules;
use crate::watchdog::{Next, Watched};
use anyhow::{Context, Result};
use rustix::process::Pid;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest silence of a suite; building everything afresh on two cores takes some minutes.
const SILENCE: Duration = Duration::from_secs(15 * 60);

#[derive(Clone, Copy, Default)]
struct Totals {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl Totals {
    fn of(ok: bool) -> Totals {
        Totals { passed: ok.into(), failed: (!ok).into(), skipped: 0 }
    }

    fn add(&mut self, other: Totals) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// One cargo call.
struct Suite {
    name: &'static str,
    call: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
}

const fn suite(name: &'static str, call: &'static [&'static str]) -> Suite {
    Suite { name, call, env: &[] }
}

const SUITES: &[Suite] = &[
    suite("format", &["fmt", "--all", "--check"]),
    suite("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    suite("build", &["build", "--release", "--quiet", "--package", "peerdma-cli"]),
    suite("rooms", &["test", "--workspace", "--exclude", "system", "--no-fail-fast"]),
    suite(
        "sabotage",
        &[
            "test",
            "--package",
            "hca",
            "--package",
            "umem",
            "--features",
            "hca/sabotage,umem/sabotage",
            "--no-fail-fast",
        ],
    ),
    Suite {
        name: "loom",
        call: &[
            "test",
            "--package",
            "umem",
            "--package",
            "dmabuf",
            "--package",
            "mm",
            "--release",
            "--lib",
            "model::",
        ],
        // Flags of their own would make every other suite build anew.
        env: &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")],
    },
    Suite {
        name: "fuzz",
        call: &["test", "--manifest-path", "fuzz/Cargo.toml"],
        env: &[("CARGO_TARGET_DIR", "fuzz/target")],
    },
    // The library with the defects that the system's stress must notice.
    Suite {
        name: "defects for the system",
        call: &["build", "--package", "peerdma-verbs", "--features", "sabotage", "--quiet"],
        env: &[("CARGO_TARGET_DIR", "target/sabotage")],
    },
    suite("system", &["test", "--package", "system", "--no-fail-fast", "--", "--test-threads=1"]),
];

/// Runs the suites whose name contains `only`; true when nothing failed.
///
/// # Errors
/// When a suite cannot be run at all.
pub fn run_all(only: Option<&str>) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    let mut totals = Totals::default();
    if wanted("rules") {
        totals.add(house_rules(root));
    }
    for suite in SUITES.iter().filter(|suite| wanted(suite.name)) {
        totals.add(run(root, suite)?);
    }
    println!();
    println!("{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.skipped);
    Ok(totals.failed == 0)
}

fn house_rules(root: &Path) -> Totals {
    println!("==> rules");
    let (looked_at, wrong) = rules::check(root);
    for line in &wrong {
        println!("  {line}");
    }
    let failed = wrong.len() as u64;
    Totals { passed: looked_at as u64 - failed.min(looked_at as u64), failed, skipped: 0 }
}

fn run(root: &Path, suite: &Suite) -> Result<Totals> {
    let Suite { name, call, env } = suite;
    println!("==> {name}: cargo {}", call.join(" "));
    let started = Instant::now();
    let skips = SkipList::new(root)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut child = Command::new(cargo)
        .current_dir(root)
        .args(*call)
        .envs(env.iter().copied())
        .env("PEERDMA_SKIPS", &skips.file)
        .env_remove("PEERDMA_BIN")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cargo {}", call.join(" ")))?;
    let mut totals = Totals::default();
    let mut results = 0;
    let output = child.stdout.take().context("no pipe")?;
    let watched = Watched::new(Pid::from_child(&child), output, SILENCE);
    loop {
        match watched.next() {
            Next::Line(line) => {
                println!("{line}");
                if let Some(counts) = test_result(&line) {
                    totals.add(counts);
                    results += 1;
                }
            }
            Next::Silent => {
                println!("==> {name}: ended after {} min of silence", SILENCE.as_secs() / 60);
                totals.failed += 1;
            }
            Next::End => break,
        }
    }
    let ok = child.wait()?.success();
    if results == 0 {
        totals = Totals::of(ok);
    } else if !ok && totals.failed == 0 {
        // A test program died without its closing line.
        totals.failed = 1;
    }
    let skipped = skips.read();
    for line in &skipped {
        println!("  skipped: {line}");
    }
    // A test that skips itself counts as passed in its program's own line.
    let skipped = skipped.len() as u64;
    totals.passed = totals.passed.saturating_sub(skipped);
    totals.skipped += skipped;
    println!("==> {name}: {} s", started.elapsed().as_secs());
    Ok(totals)
}

/// Counts of a test program's closing line.
fn test_result(line: &str) -> Option<Totals> {
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

/// The file in which tests note why they skipped themselves.
struct SkipList {
    file: PathBuf,
}

impl SkipList {
    fn new(root: &Path) -> Result<SkipList> {
        let folder = root.join("target");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("skipped-tests");
        std::fs::write(&file, "")?;
        Ok(SkipList { file })
    }

    fn read(&self) -> Vec<String> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_closing_line() {
        let line = "test result: ok. 12 passed; 1 failed; 2 ignored; 0 measured; 3 filtered out; finished in 0.01s";
        let totals = test_result(line).unwrap();
        assert_eq!((totals.passed, totals.failed, totals.skipped), (12, 1, 2));
        assert!(test_result("test foo ... ok").is_none());
    }
}
