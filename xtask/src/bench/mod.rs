//! The speed tables of the book: the wire ([`wire`]), registered memory of each kind ([`memory`]), and how long it takes to look at a
//! large machine ([`machine`]).
//!
//! Everything runs in a network namespace of its own, where only loopback exists and its MTU carries the path MTU of
//! 4096. Rounds are interleaved and ratios taken within a round, so that a machine whose speed drifts does not decide.

mod machine;
mod memory;
mod wire;

use anyhow::{Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use system::Run;

/// How long one program may take, which needs some ten seconds: perftest's latency programs wait for ever for a peer that
/// failed, since they spin on memory only.
const LIMIT: Duration = Duration::from_secs(120);

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

/// What figures are compared with, and their rows.
struct Table {
    against: &'static str,
    rows: Vec<Row>,
}

/// One row: what was measured, one figure a round.
struct Row {
    name: String,
    unit: &'static str,
    figures: Vec<f64>,
    /// Figures of the same rounds to divide by.
    against: Option<Vec<f64>>,
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
        print_json(&tables);
    } else {
        tables.iter().for_each(print_table);
    }
    Ok(true)
}

fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

impl Row {
    fn plain(name: impl Into<String>, unit: &'static str, figures: Vec<f64>) -> Row {
        Row { name: name.into(), unit, figures, against: None }
    }

    fn ratio_to(self, against: &[f64]) -> Row {
        Row { against: Some(against.to_vec()), ..self }
    }

    fn ratio(&self) -> Option<f64> {
        let pairs = self.figures.iter().zip(self.against.as_ref()?);
        median(&pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
    }
}

fn print_table(table: &Table) {
    println!("| what | median | best | {} |", table.against);
    println!("| --- | --- | --- | --- |");
    for row in &table.rows {
        let Some(median) = median(&row.figures) else {
            println!("| {} | not possible here | | |", row.name);
            continue;
        };
        let best = match row.unit {
            "us" | "ms" => row.figures.iter().copied().fold(f64::INFINITY, f64::min),
            _ => row.figures.iter().copied().fold(0.0, f64::max),
        };
        let ratio = row.ratio().map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        println!(
            "| {} | {median:.2} {unit} | {best:.2} {unit} | {ratio} |",
            row.name,
            unit = row.unit
        );
    }
}

fn print_json(tables: &[Table]) {
    let rows: Vec<String> = tables
        .iter()
        .flat_map(|table| &table.rows)
        .map(|row| {
            let ratio = row.ratio().map_or("null".into(), |ratio| format!("{ratio:.4}"));
            format!(
                "{{\"what\":{:?},\"unit\":{:?},\"figures\":{:?},\"ratio\":{ratio}}}",
                row.name, row.unit, row.figures
            )
        })
        .collect();
    println!("[{}]", rows.join(","));
}

fn target() -> PathBuf {
    let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    std::env::var_os("CARGO_TARGET_DIR").map_or(default, PathBuf::from).join("release")
}

/// Runs a program to its end, and gives what it said.
fn output(run: Run) -> Result<String> {
    let finished = run.limit(LIMIT).finish();
    if !finished.succeeded() {
        bail!("{finished}");
    }
    Ok(finished.stdout)
}
