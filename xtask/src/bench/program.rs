//! The programs that are measured: where they are built, and how one is run to its end.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
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

/// What a bare peer of `tests/c/peers` prints, its only figure.
pub fn peer(program: &str, arguments: &[&str]) -> Result<f64> {
    let program = system::c_program(program).map_err(anyhow::Error::msg)?;
    let said = output(Run::program(program).args(arguments))?;
    said.trim().parse().with_context(|| said.clone())
}

/// Figures of a C program of the tests that prints `NAME FIGURE` a line, by their names.
#[derive(Default)]
pub struct Figures(BTreeMap<String, Vec<f64>>);

impl Figures {
    /// Runs the program on an HCA with `switches`, and adds what it found.
    pub fn run(&mut self, program: &str, what: &str, switches: &[&str]) -> Result<()> {
        let program = system::c_program(program).map_err(anyhow::Error::msg)?;
        let mut run = Run::hca("sh -c").arg(format!("exec $PROGRAM {what}"));
        for switch in switches {
            run = run.option(*switch);
        }
        for line in output(run.env("PROGRAM", program))?.lines() {
            let (name, figure) = line.rsplit_once(' ').with_context(|| line.to_owned())?;
            self.0.entry(name.to_owned()).or_default().push(figure.parse()?);
        }
        Ok(())
    }

    /// Those of a name.
    pub fn of(&self, name: &str) -> Vec<f64> {
        self.0.get(name).cloned().unwrap_or_default()
    }
}
