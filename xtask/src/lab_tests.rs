//! Tests of the system for which something large has to be fetched, or something that is another
//! one every day: they are skipped where nobody asked for it by `cargo xtask lab`, and run by it.

use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;

/// Builds the release program and runs the tests of a file of the system's whose names contain
/// `filter`, with what they say; true when they passed.
///
/// # Errors
/// Cargo cannot be run.
pub fn run(file: &str, filter: &str) -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let call = |words: &[&str]| -> Result<bool> {
        let status = Command::new(&cargo).current_dir(root).args(words).status();
        Ok(status.with_context(|| words.join(" "))?.success())
    };
    let test = ["test", "--package", "system", "--test", file];
    let how = ["--", "--test-threads=1", "--nocapture", filter];
    Ok(call(&["build", "--release", "--quiet", "--package", "peerdma-cli"])?
        && call(&[&test[..], &how[..]].concat())?)
}

/// Fetches Debian's sid, unless there is one from an earlier day and it need not be `afresh`, and
/// runs the generic tests of its rdma-core there; true when all passed but those that are listed.
///
/// # Errors
/// It cannot be fetched, or the tests cannot be run.
pub fn run_newest_rdma_core(afresh: bool) -> Result<bool> {
    system::make_newest_debian(afresh).map_err(anyhow::Error::msg)?;
    run("newest_rdma_core", "")
}
