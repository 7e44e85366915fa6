//! The speed tables of the book: the wire ([`wire`]), registered memory of each kind ([`memory`]),
//! and how long it takes to look at a large machine ([`machine`]).
//!
//! Everything runs in a network namespace of its own, where only loopback exists and its MTU
//! carries the path MTU of 4096. Rounds are interleaved and ratios taken within a round, so that a
//! machine whose speed drifts does not decide.

mod machine;
mod memory;
mod program;
mod table;
mod wire;

use anyhow::{Result, bail};
pub use program::target;
use std::process::Command;

/// A part of what is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Part {
    /// Sockets, RDMA and UCX between two processes
    Wire,
    /// Registration and use of memory of each kind
    Memory,
    /// Looking at a large machine
    Machine,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Wire => "wire",
            Part::Memory => "memory",
            Part::Machine => "machine",
        }
    }
}

/// Builds what is measured and runs the rounds in a fresh namespace.
///
/// # Errors
/// When something is missing, with what to install.
pub fn run(rounds: u32, only: Option<Part>, json: bool) -> Result<bool> {
    for (program, package) in [("ib_write_bw", "perftest"), ("unshare", "util-linux")] {
        if !system::has(program) {
            bail!("{program} is not installed (package {package})");
        }
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for call in [
        &["build", "--release", "--quiet", "--package", "peerdma-cli"][..],
        &["build", "--release", "--quiet", "--package", "link", "--example", "speed"][..],
    ] {
        if !Command::new(&cargo).args(call).status()?.success() {
            bail!("cargo {} failed", call.join(" "));
        }
    }
    let mut inside = Command::new("unshare");
    if !system::is_root() {
        inside.arg("-r");
    }
    inside
        .args(["-n", "sh", "-c", "ip link set lo up && exec \"$0\" \"$@\""])
        .arg(std::env::current_exe()?)
        .args(["bench", "--inside", "--rounds", &rounds.to_string()])
        .args(only.map(|part| ["--only", part.name()]).into_iter().flatten())
        .env("PEERDMA_BIN", target().join("peerdma"));
    if json {
        inside.arg("--json");
    }
    Ok(inside.status()?.success())
}

/// The rounds themselves.
///
/// # Errors
/// When a measurement fails; its output is shown.
pub fn inside(rounds: u32, only: Option<Part>, json: bool) -> Result<bool> {
    let wants = |part| only.is_none_or(|only| only == part);
    let mut tables = Vec::new();
    if wants(Part::Wire) {
        tables.push(wire::measure(rounds)?);
    }
    if wants(Part::Memory) {
        tables.push(memory::measure(rounds)?);
    }
    if wants(Part::Machine) {
        tables.push(machine::measure(rounds)?);
    }
    if json {
        table::print_json(&tables);
    } else {
        tables.iter().for_each(table::print);
    }
    Ok(true)
}
