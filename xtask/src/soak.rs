//! What takes longer than a suite may: the random tests for as long as one likes, and all of
//! mpi4py's suite.

use crate::wheels;
use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// Program of the system's tests, its test, and what that does.
const RUNS: &[(&str, &str, &str)] = &[
    (
        "stress",
        "connections",
        "processes connect, disconnect, break their queue pairs, exit and are killed; nothing \
         hangs, nothing is left",
    ),
    (
        "stress",
        "gpu_buffers",
        "GPU memory moves, is revoked and freed under RDMA of three processes; every byte is \
         accounted for",
    ),
    (
        "deaths",
        "deaths",
        "one of two processes that share memory ends at a point of what they do to it, for each of \
         1,000 seeds; the other outlives it. They take the time they take",
    ),
    (
        "mpi",
        "mpi4pys_suite_over_reliable_connections",
        "mpi4py's tests of messages, collectives and one-sided operations, over Open MPI and UCX's \
         rc_verbs; they take the time they take",
    ),
    ("mpi", "mpi4pys_suite_over_datagrams", "the same over UCX's ud_verbs"),
    ("mpi", "mpi4pys_suite_over_libfabric", "the same over MPICH and libfabric's verbs provider"),
];

/// Says what there is to run.
pub fn list() {
    for (_, name, what) in RUNS {
        println!("{name}: {what}");
    }
}

/// Runs each whose name contains `only` for `seconds`; true when all passed.
///
/// # Errors
/// When one cannot be run at all.
pub fn run(seconds: u64, seed: Option<u64>, only: Option<&str>) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let command = |words: &[&str]| {
        let mut command = Command::new(&cargo);
        command.current_dir(root).args(words);
        command
    };
    let call = |words: &[&str]| {
        let mut command = command(words);
        command.env("PEERDMA_SOAK_SECONDS", seconds.to_string());
        if let Some(seed) = seed {
            command.env("PEERDMA_SOAK_SEED", seed.to_string());
        }
        command.status().with_context(|| format!("cargo {}", words.join(" ")))
    };
    let built = std::env::var_os("PEERDMA_BIN").is_some()
        || call(&["build", "--release", "--quiet", "--package", "peerdma-cli"])?.success();
    // The library in which processes end where they are told to.
    let library = ["build", "--quiet", "--lib", "--package", "peerdma-verbs"];
    let defects = ["--package", "test-support", "--features", "peerdma-verbs/sabotage"];
    let defects = [&library[..], &defects].concat();
    let built = built
        && (std::env::var_os("PEERDMA_SABOTAGED_LIBRARY").is_some()
            || command(&defects).env("CARGO_TARGET_DIR", "target/sabotage").status()?.success());
    wheels::fetch();
    let mut ok = built;
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    for (program, name, what) in RUNS.iter().filter(|(_, name, _)| built && wanted(name)) {
        println!("==> {name}, {seconds} s: {what}");
        let words = ["test", "--quiet", "--package", "system", "--test", program, "--", "--exact"];
        ok &= call(&[&words[..], &[name, "--nocapture"]].concat())?.success();
    }
    Ok(ok)
}
