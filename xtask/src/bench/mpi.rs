//! MPI between two ranks of one host: Open MPI with UCX over the device, and over UCX's own shared
//! memory (`tests/c/peers/mpi_speed.c`).

use super::contest::Contest;
use super::program::output;
use super::table::Aim;
use anyhow::{Context, Error, Result};
use system::{Counters, Mpi};

/// What the program measures, as it calls it, in words and in its unit.
const FIGURES: [(&str, &str, &str); 5] = [
    ("latency", "latency, 8 B", "us"),
    ("bandwidth", "bandwidth, 1 MiB", "GB/s"),
    ("rate", "message rate, 8 B, one pair", "M/s"),
    ("allreduce small", "allreduce, 8 B", "us"),
    ("allreduce large", "allreduce, 64 KiB", "us"),
];
/// How many times slower than UCX's own way ours may be.
const FACTOR: f64 = 2.0;

/// Adds both ways and compares them.
pub fn add(contest: &mut Contest<'_>) {
    let names = |way: &str| {
        let name = |(_, name, unit)| (format!("MPI {name}, {way}"), unit);
        FIGURES.map(name).into()
    };
    let peers = contest.add_several(names("UCX's shared memory"), || {
        figures(Mpi::open_over_shared_memory(), None)
    });
    let ours = contest
        .add_several(names("rc_v"), || figures(Mpi::open_over_ucx("rc_v"), Some("--link=local")));
    for ((ours, peer), (.., unit)) in ours.into_iter().zip(peers).zip(FIGURES) {
        let aim = match unit {
            "us" => Aim::RatioAtMost(FACTOR),
            _ => Aim::RatioAtLeast(1.0 / FACTOR),
        };
        contest.compare(ours, peer, aim);
    }
}

fn figures(mpi: Result<Mpi, String>, option: Option<&str>) -> Result<Vec<f64>> {
    let mpi = mpi.map_err(Error::msg)?;
    let program = mpi.program("mpi_speed").map_err(Error::msg)?;
    let run = mpi.run(2, &program, &Counters::new());
    let said = output(option.into_iter().fold(run, |run, option| run.option(option)))?;
    let figure = |(name, ..): &(&str, _, _)| {
        let line = said.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        line.with_context(|| format!("no {name} in {said}"))
    };
    FIGURES.iter().map(figure).collect()
}
