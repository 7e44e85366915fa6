//! Every suite in order, with one closing line of totals.

use crate::allowed::{self, Allowed};
use crate::arm;
use crate::rules;
use crate::totals::{Harness, Skip, Totals};
use crate::watchdog::{Next, Watched};
use anyhow::{Context, Result, bail};
use rustix::process::Pid;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest silence of a suite; building everything afresh on two cores takes some minutes.
const SILENCE: Duration = Duration::from_secs(15 * 60);

/// One cargo call.
struct Suite {
    name: &'static str,
    call: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    counts: Counts,
    /// Why it cannot run here; then it is one skip.
    lacks: fn() -> Option<String>,
}

const fn nothing() -> Option<String> {
    None
}

/// What the totals count of a suite.
enum Counts {
    /// Its tests.
    Tests,
    /// Itself, as one check.
    Check,
    /// Nothing unless it fails: what others need.
    Failure,
}

const fn suite(name: &'static str, call: &'static [&'static str]) -> Suite {
    Suite { name, call, env: &[], counts: Counts::Tests, lacks: nothing }
}

const fn check(name: &'static str, call: &'static [&'static str]) -> Suite {
    Suite { counts: Counts::Check, ..suite(name, call) }
}

const SUITES: &[Suite] = &[
    check("format", &["fmt", "--all", "--check"]),
    check("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    Suite {
        counts: Counts::Failure,
        ..suite("build", &["build", "--release", "--quiet", "--package", "peerdma-cli"])
    },
    suite("rooms", &["test", "--workspace", "--exclude", "system", "--no-fail-fast"]),
    // Only what the defects are for: the rooms have had the other tests.
    suite(
        "sabotage",
        &[
            "test",
            "--package",
            "transport",
            "--package",
            "umem",
            "--features",
            "transport/sabotage,umem/sabotage",
            "--no-fail-fast",
            "sabotage",
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
        counts: Counts::Tests,
        lacks: nothing,
    },
    check("fuzz format", &["fmt", "--manifest-path", "fuzz/Cargo.toml", "--all", "--check"]),
    Suite {
        name: "fuzz clippy",
        call: &[
            "clippy",
            "--manifest-path",
            "fuzz/Cargo.toml",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
        env: &[("CARGO_TARGET_DIR", "fuzz/target")],
        counts: Counts::Check,
        lacks: nothing,
    },
    Suite {
        name: "fuzz",
        call: &["test", "--manifest-path", "fuzz/Cargo.toml"],
        env: &[("CARGO_TARGET_DIR", "fuzz/target")],
        counts: Counts::Tests,
        lacks: nothing,
    },
    // The other processor: everything compiles but the one crate that embeds the linked library, which needs a linker for both
    // processors; what is in assembly runs in an emulator.
    Suite {
        name: "aarch64",
        call: &[
            "check",
            "--target",
            arm::TARGET,
            "--workspace",
            "--exclude",
            "peerdma-cli",
            "--quiet",
        ],
        env: arm::ENV,
        counts: Counts::Check,
        lacks: arm::lacks,
    },
    Suite {
        name: "aarch64 guard",
        call: &["test", "--target", arm::TARGET, "--package", "mm", "--lib", "guard::"],
        env: arm::ENV,
        counts: Counts::Tests,
        lacks: arm::lacks,
    },
    // The library with the defects that the system's stress must notice.
    Suite {
        name: "defects for the system",
        call: &["build", "--package", "peerdma-verbs", "--features", "sabotage", "--quiet"],
        env: &[("CARGO_TARGET_DIR", "target/sabotage")],
        counts: Counts::Failure,
        lacks: nothing,
    },
    suite("system", &["test", "--package", "system", "--no-fail-fast", "--", "--test-threads=1"]),
];

/// Suites that are no cargo call.
const RULES: &str = "rules";

/// What to run, and how strictly.
#[derive(Default)]
pub struct Wanted {
    /// Only suites whose name contains this.
    pub only: Option<String>,
    /// A skipped test that `tests/allowed-skips.txt` does not name is a failure.
    pub strict: bool,
}

impl Wanted {
    fn wants(&self, name: &str) -> bool {
        self.only.as_deref().is_none_or(|only| name.contains(only))
    }
}

/// Runs the suites that are wanted; true when something passed, nothing failed and nothing was skipped that may not be.
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
    let (mut totals, mut skips) = (Totals::default(), Vec::new());
    if wanted.wants(RULES) {
        totals.add(house_rules(root, &allowed));
    }
    for suite in SUITES.iter().filter(|suite| wanted.wants(suite.name)) {
        let (counts, skipped) = run(root, suite)?;
        totals.add(counts);
        skips.extend(skipped);
    }
    println!();
    let not_named = if wanted.strict { allowed.not_named(&skips) } else { Vec::new() };
    for skip in &not_named {
        println!("may not be skipped ({}): {}: {}", allowed::FILE, skip.test, skip.reason);
    }
    println!("{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.skipped);
    Ok(totals.is_success() && not_named.is_empty())
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

fn run(root: &Path, suite: &Suite) -> Result<(Totals, Vec<Skip>)> {
    let Suite { name, call, env, counts, lacks } = suite;
    println!("==> {name}: cargo {}", call.join(" "));
    if let Some(reason) = lacks() {
        println!("  skipped: {reason}");
        let skip = Skip { test: (*name).to_owned(), reason };
        return Ok((Totals { skipped: 1, ..Totals::default() }, vec![skip]));
    }
    let started = Instant::now();
    let notes = Notes::new(root)?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut child = Command::new(cargo)
        .current_dir(root)
        .args(*call)
        .envs(env.iter().copied())
        .env(test_support::FILE, &notes.file)
        .env_remove("PEERDMA_BIN")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cargo {}", call.join(" ")))?;
    let mut harness = Harness::default();
    let output = child.stdout.take().context("no pipe")?;
    let watched = Watched::new(Pid::from_child(&child), output, SILENCE);
    loop {
        match watched.next() {
            Next::Line(line) => {
                println!("{line}");
                harness.line(&line);
            }
            Next::Silent => {
                println!("==> {name}: ended after {} min of silence", SILENCE.as_secs() / 60);
                harness.ended_for_silence();
            }
            Next::End => break,
        }
    }
    let ok = child.wait()?.success();
    let (totals, skips) = match counts {
        // A test program that is not even there has not passed.
        Counts::Tests => {
            let ok = ok && harness.ran();
            harness.finish(ok, &notes.read())
        }
        Counts::Check => (Totals::check(ok), Vec::new()),
        Counts::Failure => (Totals { passed: 0, ..Totals::check(ok) }, Vec::new()),
    };
    for skip in &skips {
        println!("  skipped: {}: {}", skip.test, skip.reason);
    }
    println!("==> {name}: {} s", started.elapsed().as_secs());
    Ok((totals, skips))
}

/// The file in which tests note why they skipped themselves.
struct Notes {
    file: PathBuf,
}

impl Notes {
    fn new(root: &Path) -> Result<Notes> {
        let folder = root.join("target");
        std::fs::create_dir_all(&folder)?;
        let file = folder.join("skipped-tests");
        std::fs::write(&file, "")?;
        // Tests that run as another user note their skips too.
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666))?;
        Ok(Notes { file })
    }

    fn read(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_no_suite_has_is_refused_with_the_names() {
        let wanted = Wanted { only: Some("sytem".to_owned()), strict: false };
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
