//! The speed tables of the book: one host ([`host`]), the wire ([`wire`]), networks that lose
//! packets or are too slow ([`network`]), registered memory of each kind ([`memory`]), many of
//! everything ([`scale`]), how long it takes to look at a large machine ([`machine`]), and Linux's
//! own RoCE in software ([`rxe`]); and its plots ([`curves`]).
//!
//! Everything runs in network namespaces of its own, whose MTU carries the path MTU of 4096, or in
//! a guest. Rounds are interleaved and ratios taken within a round, so that a machine whose speed
//! drifts does not decide.

mod contest;
mod curves;
mod host;
mod machine;
mod memory;
mod mpi;
mod network;
mod pair;
mod program;
mod rxe;
mod scale;
mod table;
mod wire;

use anyhow::{Result, bail};
use curves::{Extent, Place};
pub use program::target;
use std::process::Command;

/// A part of what is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Part {
    /// Two processes on one host, from memory to memory, beside bare system calls and UCX
    Host,
    /// Sockets, RDMA and UCX between two processes
    Wire,
    /// Loss, and many streams onto one link
    Network,
    /// Registration and use of memory of each kind
    Memory,
    /// Many queue pairs, regions and processes, and a device that idles
    Scale,
    /// Looking at a large machine
    Machine,
    /// Linux's rxe beside it, in one emulated machine
    Rxe,
    /// Plots by message size and queue pairs
    Curves,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Host => "host",
            Part::Wire => "wire",
            Part::Network => "network",
            Part::Memory => "memory",
            Part::Scale => "scale",
            Part::Machine => "machine",
            Part::Rxe => "rxe",
            Part::Curves => "curves",
        }
    }
}

/// What is asked for.
#[derive(Clone, Debug, clap::Args)]
pub struct Wanted {
    /// How often everything is measured; medians are shown
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Measure a part only
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Only the plots, with fewer points and two rounds: some two minutes
    #[arg(long, conflicts_with_all = ["rounds", "only", "json", "publish"])]
    quick: bool,
    /// Print every figure of the tables as JSON; that of the plots is always left beside them
    #[arg(long)]
    json: bool,
    /// Leave the plots in the book, not in target/curves
    #[arg(long)]
    publish: bool,
    /// Already inside the benchmark's network namespace
    #[arg(long, hide = true)]
    inside: bool,
}

impl Wanted {
    /// The same as words of a command line.
    fn words(&self) -> Vec<String> {
        let mut words = match self.quick {
            true => vec!["--quick".to_owned()],
            false => vec!["--rounds".to_owned(), self.rounds.to_string()],
        };
        words.extend(self.only.iter().flat_map(|part| ["--only".into(), part.name().into()]));
        words.extend(self.json.then(|| "--json".into()));
        words.extend(self.publish.then(|| "--publish".into()));
        words
    }
}

/// Builds what is measured and runs the rounds in a fresh namespace.
///
/// # Errors
/// When something is missing, with what to install; when a measurement of the tables fails: its
/// output is shown.
pub fn run(wanted: &Wanted) -> Result<bool> {
    if wanted.inside {
        return inside(wanted);
    }
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
        .args(["bench", "--inside"])
        .args(wanted.words())
        .env("PEERDMA_BIN", target().join("peerdma"));
    Ok(inside.status()?.success())
}

/// The rounds themselves.
fn inside(wanted: &Wanted) -> Result<bool> {
    if wanted.quick {
        return curves::measure(&Extent::quick(), Place::Target);
    }
    let rounds = wanted.rounds;
    let wants = |part| wanted.only.is_none_or(|only| only == part);
    let mut tables = Vec::new();
    if wants(Part::Host) {
        tables.push(host::measure(rounds));
    }
    if wants(Part::Wire) {
        tables.push(wire::measure(rounds));
    }
    if wants(Part::Network) {
        tables.push(network::measure(rounds)?);
    }
    if wants(Part::Memory) {
        tables.push(memory::measure(rounds)?);
    }
    if wants(Part::Scale) {
        tables.push(scale::measure(rounds)?);
    }
    if wants(Part::Machine) {
        tables.push(machine::measure(rounds)?);
    }
    if wants(Part::Rxe) {
        tables.push(rxe::measure(rounds));
    }
    if wanted.json {
        table::print_json(&tables);
    } else {
        tables.iter().for_each(table::print);
    }
    let place = if wanted.publish { Place::Book } else { Place::Target };
    Ok(!wants(Part::Curves) || curves::measure(&Extent::whole(rounds), place)?)
}
