//! The programs that are measured: where they are built, and how one is run to its end.

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;
use system::Run;

/// How long one program may take, which needs some ten seconds: perftest's latency programs wait
/// for ever for a peer that failed, since they spin on memory only.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The folder of what is built for release.
pub fn target() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    std::env::var_os("CARGO_TARGET_DIR").map_or(default, PathBuf::from).join("release")
}

/// Runs a program to its end, and gives what it said.
pub fn output(run: Run) -> Result<String> {
    let finished = run.limit(LIMIT).finish();
    if !finished.succeeded() {
        bail!("{finished}");
    }
    Ok(finished.stdout)
}
