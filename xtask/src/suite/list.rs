//! The suites, in their order.

use super::lanes;
use crate::{arm, counts, tools, wheels};
use anyhow::Result;
use std::ffi::OsString;
use std::path::Path;

/// One call of a program.
pub struct Suite {
    pub name: &'static str,
    pub program: Program,
    pub call: &'static [&'static str],
    /// More words of the call, of which the workspace tells.
    pub words: fn(&Path) -> Result<Vec<String>>,
    pub env: &'static [(&'static str, &'static str)],
    pub counts: Counts,
    /// Installs what it needs beside packages.
    pub fetch: fn(),
    /// Why it cannot run here; then it is one skip.
    pub lacks: fn() -> Option<String>,
    pub lane: Lane,
}

/// When a suite runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// After the one before.
    InOrder,
    /// Beside all of those where they leave it room: it builds in a folder of its own, or little.
    Beside,
    /// Beside those that come after it in the list, where they leave it room: a machine that is
    /// emulated bears to wait longer than what is not.
    Along,
}

impl Lane {
    /// By how much others go first (nice(1)).
    pub fn niceness(self) -> &'static str {
        match self {
            Lane::InOrder => "0",
            Lane::Along => "10",
            Lane::Beside => "19",
        }
    }
}

/// What a suite calls.
#[derive(Clone, Copy)]
pub enum Program {
    Cargo,
    Shell,
    /// This program itself.
    Chore,
}

/// What the totals count of a suite.
pub enum Counts {
    /// Its tests.
    Tests,
    /// Itself, as one check.
    Check,
    /// Nothing unless it fails: what others need.
    Failure,
}

impl Program {
    pub fn name(self) -> &'static str {
        match self {
            Program::Cargo => "cargo",
            Program::Shell => "sh",
            Program::Chore => "cargo xtask",
        }
    }

    pub fn path(self) -> OsString {
        match self {
            Program::Cargo => std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            Program::Shell => "sh".into(),
            // Cargo would wait for another that builds.
            Program::Chore => std::env::current_exe().map_or("xtask".into(), Into::into),
        }
    }
}

const fn nothing() -> Option<String> {
    None
}

fn no_words(_: &Path) -> Result<Vec<String>> {
    Ok(Vec::new())
}

/// Where only this suite is run, nothing has built the program before.
fn no_program() -> Option<String> {
    let words = || "peerdma is not built (cargo build --release)".to_owned();
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/release/peerdma");
    (!program.is_file()).then(words)
}

const fn suite(name: &'static str, call: &'static [&'static str]) -> Suite {
    Suite {
        name,
        program: Program::Cargo,
        call,
        words: no_words,
        env: &[],
        counts: Counts::Tests,
        fetch: || (),
        lacks: nothing,
        lane: Lane::InOrder,
    }
}

const fn check(name: &'static str, call: &'static [&'static str]) -> Suite {
    Suite { counts: Counts::Check, ..suite(name, call) }
}

const fn beside(suite: Suite) -> Suite {
    Suite { lane: Lane::Beside, ..suite }
}

/// Some of the system's tests: each may use the whole machine.
const fn system(name: &'static str, words: fn(&Path) -> Result<Vec<String>>) -> Suite {
    let env = &[("RUST_TEST_THREADS", "1")];
    Suite { words, env, ..suite(name, &["test", "--package", "system", "--no-fail-fast"]) }
}

/// A folder of its own to build in: flags of its own would make every other suite build anew.
const LOOM: &[(&str, &str)] = &[("RUSTFLAGS", "--cfg loom"), ("CARGO_TARGET_DIR", "target/loom")];

/// Where what has defects is built.
const SABOTAGE: &[(&str, &str)] = &[("CARGO_TARGET_DIR", "target/sabotage")];

/// With a fuzzer that is there already, none is compiled, which would take a C++ compiler. Nothing
/// is linked by clippy, so neither it nor a library to embed need be there.
const LINT: &[(&str, &str)] = &[
    ("CARGO_TARGET_DIR", "target/lint"),
    ("CUSTOM_LIBFUZZER_PATH", "/nonexistent/libfuzzer.a"),
    ("RUSTDOCFLAGS", "-D warnings"),
    arm::EMBEDDED[0],
    arm::EMBEDDED[1],
    arm::EMBEDDED[2],
    arm::EMBEDDED[3],
];

pub const SUITES: &[Suite] = &[
    check("format", &["fmt", "--all", "--check"]),
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
    beside(Suite {
        program: Program::Chore,
        fetch: || tools::MDBOOK.fetch(),
        lacks: || tools::MDBOOK.lacks(),
        ..check("book", &["docs"])
    }),
    // Not its advisories: what they say changes while nothing here does, and they are fetched.
    beside(Suite {
        fetch: || tools::CARGO_DENY.fetch(),
        lacks: || tools::CARGO_DENY.lacks(),
        ..check(
            "cargo deny",
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
    }),
    Suite { program: Program::Shell, ..check("crates to publish", &["xtask/publishable.sh"]) },
    Suite {
        program: Program::Chore,
        lacks: counts::lacks,
        ..check("instruction counts", &["counts"])
    },
    suite(
        "rooms",
        &[
            "test",
            "--workspace",
            "--exclude",
            "system",
            "--exclude",
            "peerdma-fuzz",
            "--no-fail-fast",
        ],
    ),
    beside(Suite {
        env: LOOM,
        ..suite(
            "loom",
            &[
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
        )
    }),
    // What the fuzzer stands on was built for the rooms.
    beside(suite("fuzz", &["test", "--package", "peerdma-fuzz"])),
    // The other processor: everything compiles; what is in assembly runs in an emulator.
    beside(Suite {
        env: arm::ENV,
        fetch: arm::fetch,
        lacks: arm::lacks,
        ..check("aarch64", &["check", "--target", arm::TARGET, "--workspace", "--quiet"])
    }),
    beside(Suite {
        env: arm::ENV,
        fetch: arm::fetch,
        lacks: arm::lacks,
        ..suite(
            "aarch64 guard",
            &["test", "--target", arm::TARGET, "--package", "mm", "--lib", "guard::"],
        )
    }),
    // Only what the defects are for: the rooms have had the other tests. In the folder of the
    // library with the defects, so behind what takes so long that nobody waits for it there.
    beside(Suite {
        env: SABOTAGE,
        ..suite(
            "sabotage",
            &[
                "test",
                "--package",
                "transport",
                "--package",
                "umem",
                "--package",
                "test-support",
                "--features",
                "transport/sabotage",
                "--tests",
                "--no-fail-fast",
                "sabotage",
            ],
        )
    }),
    beside(Suite {
        env: LINT,
        ..check(
            "clippy",
            &[
                "clippy",
                "--workspace",
                "--all-targets",
                "--features",
                "peerdma-fuzz/libfuzzer",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ],
        )
    }),
    beside(Suite {
        env: LINT,
        ..check("API docs", &["doc", "--workspace", "--no-deps", "--quiet"])
    }),
    // The library with the defects that the system's stress must notice, and that programs must
    // outlive.
    Suite {
        env: SABOTAGE,
        counts: Counts::Failure,
        ..suite(
            "defects for the system",
            &[
                "build",
                "--lib",
                "--package",
                "peerdma-verbs",
                "--package",
                "test-support",
                "--features",
                "peerdma-verbs/sabotage",
                "--quiet",
            ],
        )
    },
    // Else one of the next two would wait for the other to build.
    Suite {
        counts: Counts::Failure,
        ..suite("programs of the system", &["test", "--package", "system", "--no-run", "--quiet"])
    },
    Suite { lane: Lane::Along, ..system("system in guests", lanes::in_guests) },
    Suite { fetch: wheels::fetch, ..system("system", lanes::others) },
];
