//! Every suite in order, with one closing line of totals.

use crate::allowed::{self, Allowed};
use crate::arm;
use crate::counts;
use crate::failures::Failure;
use crate::rules;
use crate::tools;
use crate::totals::{Harness, Outcome, Skip, Totals};
use crate::watchdog::{Next, Watched};
use anyhow::{Context, Result, bail};
use rustix::process::Pid;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest silence of a suite; building everything afresh on two cores takes some minutes.
const SILENCE: Duration = Duration::from_secs(15 * 60);

/// One call of cargo, or of a shell.
struct Suite {
    name: &'static str,
    program: Program,
    call: &'static [&'static str],
    env: &'static [(&'static str, &'static str)],
    counts: Counts,
    /// Why it cannot run here; then it is one skip.
    lacks: fn() -> Option<String>,
}

const fn nothing() -> Option<String> {
    None
}

/// Where only this suite is run, nothing has built the program before.
fn no_program() -> Option<String> {
    let words = || "peerdma is not built (cargo build --release)".to_owned();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/peerdma");
    (!program.is_file()).then(words)
}

/// What a suite calls.
#[derive(Clone, Copy)]
enum Program {
    Cargo,
    Shell,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Program::Cargo => "cargo",
            Program::Shell => "sh",
        }
    }

    fn command(self) -> Command {
        match self {
            Program::Cargo => {
                Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            }
            Program::Shell => Command::new("sh"),
        }
    }
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
    Suite { name, program: Program::Cargo, call, env: &[], counts: Counts::Tests, lacks: nothing }
}

const fn check(name: &'static str, call: &'static [&'static str]) -> Suite {
    Suite { counts: Counts::Check, ..suite(name, call) }
}

const SUITES: &[Suite] = &[
    check("format", &["fmt", "--all", "--check"]),
    check("clippy", &["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"]),
    Suite {
        env: &[("RUSTDOCFLAGS", "-D warnings")],
        ..check("API docs", &["doc", "--workspace", "--no-deps", "--quiet"])
    },
    Suite {
        counts: Counts::Failure,
        ..suite("build", &["build", "--release", "--quiet", "--package", "peerdma-cli"])
    },
    // With the program that was just built, which draws some of them.
    Suite {
        program: Program::Shell,
        env: &[("PEERDMA", "../../../target/release/peerdma")],
        lacks: no_program,
        ..check("pictures", &["docs/pictures.sh", "--check"])
    },
    Suite { lacks: || tools::MDBOOK.lacks(), ..check(tools::MDBOOK.suite, &["xtask", "docs"]) },
    // Not its advisories: what they say changes while nothing here does, and they are fetched.
    Suite {
        lacks: || tools::CARGO_DENY.lacks(),
        ..check(
            tools::CARGO_DENY.suite,
            &[
                "deny",
                "--locked",
                "--target",
                "x86_64-unknown-linux-gnu",
                "--log-level",
                "error",
                "check",
                "bans",
                "licenses",
                "sources",
            ],
        )
    },
    Suite { lacks: counts::lacks, ..check("instruction counts", &["xtask", "counts"]) },
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
        program: Program::Cargo,
        call: &[
            "test",
            "--package",
            "umem",
            "--package",
            "dmabuf",
            "--package",
            "mm",
            "--package",
            "shm",
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
        program: Program::Cargo,
        call: &[
            "clippy",
            "--manifest-path",
            "fuzz/Cargo.toml",
            "--all-targets",
            "--all-features",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ],
        // With a fuzzer that is there already, none is compiled, which would take a C++ compiler.
        // Nothing is linked here, so it need not be there.
        env: &[
            ("CARGO_TARGET_DIR", "fuzz/target"),
            ("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a"),
        ],
        counts: Counts::Check,
        lacks: nothing,
    },
    Suite {
        name: "fuzz",
        program: Program::Cargo,
        call: &["test", "--manifest-path", "fuzz/Cargo.toml"],
        env: &[("CARGO_TARGET_DIR", "fuzz/target")],
        counts: Counts::Tests,
        lacks: nothing,
    },
    // The other processor: everything compiles; what is in assembly runs in an emulator.
    Suite {
        name: "aarch64",
        program: Program::Cargo,
        call: &["check", "--target", arm::TARGET, "--workspace", "--quiet"],
        env: arm::ENV,
        counts: Counts::Check,
        lacks: arm::lacks,
    },
    Suite {
        name: "aarch64 guard",
        program: Program::Cargo,
        call: &["test", "--target", arm::TARGET, "--package", "mm", "--lib", "guard::"],
        env: arm::ENV,
        counts: Counts::Tests,
        lacks: arm::lacks,
    },
    // The library with the defects that the system's stress must notice, and that programs must
    // outlive.
    Suite {
        name: "defects for the system",
        program: Program::Cargo,
        call: &["build", "--package", "peerdma-verbs", "--features", "sabotage", "--quiet"],
        env: &[("CARGO_TARGET_DIR", "target/sabotage")],
        counts: Counts::Failure,
        lacks: nothing,
    },
    suite("system", &["test", "--package", "system", "--no-fail-fast", "--", "--test-threads=1"]),
];

/// The suite that calls nothing.
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
    let (mut totals, mut skips, mut failures) = (Totals::default(), Vec::new(), Vec::new());
    if wanted.wants(RULES) {
        let rules = house_rules(root, &allowed);
        totals.add(rules);
        failures.extend((rules.failed > 0).then(|| Failure::of_suite(RULES)));
    }
    for suite in SUITES.iter().filter(|suite| wanted.wants(suite.name)) {
        let outcome = run(root, suite)?;
        totals.add(outcome.totals);
        skips.extend(outcome.skips);
        let own = outcome.failures.is_empty() && outcome.totals.failed > 0;
        failures.extend(own.then(|| Failure::of_suite(suite.name)));
        failures.extend(outcome.failures);
    }
    println!();
    // Once more, where it is found: a run prints thousands of lines.
    failures.iter().for_each(|failure| print!("{failure}"));
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

fn run(root: &Path, suite: &Suite) -> Result<Outcome> {
    let Suite { name, program, call, env, counts, lacks } = suite;
    let words = format!("{} {}", program.name(), call.join(" "));
    println!("==> {name}: {words}");
    if let Some(reason) = lacks() {
        println!("  skipped: {reason}");
        let skip = Skip { test: format!("{}{name}", allowed::SUITE), reason };
        let totals = Totals { skipped: 1, ..Totals::default() };
        return Ok(Outcome { totals, skips: vec![skip], failures: Vec::new() });
    }
    let started = Instant::now();
    let notes = Notes::new(root)?;
    let mut child = program
        .command()
        .current_dir(root)
        .args(*call)
        .envs(env.iter().copied())
        .env(test_support::FILE, &notes.file)
        .env_remove("PEERDMA_BIN")
        .env("PATH", tools::search_path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| words)?;
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
    let alone = |totals| Outcome { totals, skips: Vec::new(), failures: Vec::new() };
    let outcome = match counts {
        // A test program that is not even there has not passed.
        Counts::Tests => {
            let ok = ok && harness.ran();
            harness.finish(ok, &notes.read())
        }
        Counts::Check => alone(Totals::check(ok)),
        Counts::Failure => alone(Totals { passed: 0, ..Totals::check(ok) }),
    };
    for skip in &outcome.skips {
        println!("  skipped: {}: {}", skip.test, skip.reason);
    }
    println!("==> {name}: {} s", started.elapsed().as_secs());
    Ok(outcome)
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
