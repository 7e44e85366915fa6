//! The random tests for longer than a suite may take.

use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// Test of `tests/tests/robustness/stress.rs`, and what it does.
const RUNS: &[(&str, &str)] = &[
    (
        "connections",
        "processes connect, disconnect, break their queue pairs, exit and are killed; nothing \
         hangs, nothing is left",
    ),
    (
        "gpu_buffers",
        "GPU memory moves, is revoked and freed under RDMA of three processes; every byte is \
         accounted for",
    ),
];

/// Says what there is to run.
pub fn list() {
    for (name, what) in RUNS {
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
    let call = |words: &[&str]| {
        let mut command = Command::new(&cargo);
        command.current_dir(root).args(words).env("PEERDMA_SOAK_SECONDS", seconds.to_string());
        if let Some(seed) = seed {
            command.env("PEERDMA_SOAK_SEED", seed.to_string());
        }
        command.status().with_context(|| format!("cargo {}", words.join(" ")))
    };
    let built = std::env::var_os("PEERDMA_BIN").is_some()
        || call(&["build", "--release", "--quiet", "--package", "peerdma-cli"])?.success();
    let mut ok = built;
    let wanted = |name: &str| only.is_none_or(|only| name.contains(only));
    for (name, what) in RUNS.iter().filter(|(name, _)| built && wanted(name)) {
        println!("==> {name}, {seconds} s: {what}");
        let words = ["test", "--quiet", "--package", "system", "--test", "stress", "--", "--exact"];
        ok &= call(&[&words[..], &[name, "--nocapture"]].concat())?.success();
    }
    Ok(ok)
}
