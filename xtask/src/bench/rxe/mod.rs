//! Linux's own RoCE in software, rxe, beside this: the same programs over both, in one guest, since
//! rxe is a module of the kernel and a machine for tests seldom has it.
//!
//! Where QEMU emulates the guest's processors, times are those of an emulator: system calls,
//! wake-ups and checksums cost other shares of it than on a processor. What it tells is that both
//! run, and roughly how they compare.

mod guest;

use super::table::{Row, Table};
use anyhow::{Error, Result, ensure};
use guest::{Guest, Way};

/// What both ends run.
struct Load {
    name: &'static str,
    line: &'static str,
    /// Which of the figures is taken, and how it becomes one in `unit`.
    column: usize,
    scale: f64,
    unit: &'static str,
}

const fn load(name: &'static str, line: &'static str) -> Load {
    Load { name, line, column: 3, scale: 1.048_576, unit: "MB/s" }
}

const fn latency(name: &'static str, line: &'static str) -> Load {
    Load { column: 4, scale: 1.0, unit: "us", ..load(name, line) }
}

const fn rate(name: &'static str, line: &'static str) -> Load {
    Load { column: 4, scale: 1000.0, unit: "thousand/s", ..load(name, line) }
}

/// So few iterations that an emulator is through with them in a second or two.
const LOADS: [Load; 8] = [
    load("WRITE 64 KiB", "ib_write_bw -s 65536 -n 200"),
    load("WRITE 1 MiB", "ib_write_bw -s 1048576 -n 24"),
    load("READ 1 MiB", "ib_read_bw -s 1048576 -n 24"),
    load("SEND 1 MiB", "ib_send_bw -s 1048576 -n 24"),
    latency("SEND latency, 8 B", "ib_send_lat -s 8 -n 500"),
    latency("WRITE latency, 8 B", "ib_write_lat -s 8 -n 500"),
    rate("WRITEs of 8 B", "ib_write_bw -s 8 -n 4000"),
    rate("SENDs of 8 B", "ib_send_bw -s 8 -n 4000"),
];
/// The first is what the others are compared with.
const WAYS: [(Way, &str); 3] = [
    (Way::Rxe, "rxe"),
    (Way::Ours("roce"), "peerdma, packets"),
    (Way::Ours("auto"), "peerdma, from memory to memory"),
];
/// So often a pair is run before it has failed: perftest compares two clocks first, which an
/// emulated processor that is held up lets differ, and then has no figure.
const TRIES: u32 = 4;

/// Figures of one load on one way, and why there are no more.
#[derive(Default)]
struct Measured {
    figures: Vec<f64>,
    failure: Option<String>,
}

type All = [[Measured; WAYS.len()]; LOADS.len()];

/// Measures it all, round by round. A row says why where something is missing or fails.
pub(super) fn measure(rounds: u32) -> Table {
    let guest = match Guest::boot() {
        Ok(guest) => guest,
        Err(error) => {
            let why = said(&error);
            let row = Row::plain("RDMA beside Linux's rxe, in a guest", "", Vec::new());
            return Table { against: "ratio to rxe", rows: vec![row.unless(Some(why))] };
        }
    };
    let mut all = All::default();
    if let Err(error) = in_rounds(&guest, rounds, &mut all) {
        let why = said(&error);
        // Rounds before that count.
        for measured in all.iter_mut().flatten().filter(|measured| measured.figures.is_empty()) {
            measured.failure.get_or_insert_with(|| why.clone());
        }
    }
    table(all, guest.is_emulated)
}

/// Measures in a guest, which may end at any time: then that is the error.
fn in_rounds(guest: &Guest, rounds: u32, all: &mut All) -> Result<()> {
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for (load, of_load) in LOADS.iter().zip(all.iter_mut()) {
            for ((way, _), measured) in WAYS.iter().zip(of_load) {
                if measured.failure.is_some() {
                    continue;
                }
                match one(guest, *way, load)? {
                    Ok(figure) => measured.figures.push(figure),
                    Err(error) => measured.failure = Some(said(&error)),
                }
            }
        }
    }
    Ok(())
}

/// One figure, or why there is none; an error where the guest is lost.
fn one(guest: &Guest, way: Way, load: &Load) -> vm::Result<Result<f64>> {
    let mut answer = figure(guest.perftest(way, load.line)?, load);
    for _ in 1..TRIES {
        let Err(error) = &answer else { break };
        said(error);
        answer = figure(guest.perftest(way, load.line)?, load);
    }
    Ok(answer)
}

/// The figure that is wanted. perftest gives nothing, or none that is a number, where it could not
/// tell how fast the processor's clock is.
fn figure(figures: Result<Vec<f64>>, load: &Load) -> Result<f64> {
    let figures = figures?;
    let figure = figures.get(load.column).map_or(0.0, |figure| figure * load.scale);
    ensure!(figure.is_finite() && figure > 0.0, "perftest has no figure, only {figures:?}");
    Ok(figure)
}

/// Shows an error whole; its first line, for a table.
fn said(error: &Error) -> String {
    let text = format!("{error:#}");
    eprintln!("{text}");
    text.lines().next().unwrap_or_default().to_owned()
}

fn table(all: All, is_emulated: bool) -> Table {
    let (place, against) = match is_emulated {
        true => ("emulated", "ratio to rxe, both on an emulated processor"),
        false => ("guest", "ratio to rxe, both in a guest"),
    };
    let mut rows = Vec::new();
    for (Load { name: load, unit, .. }, of_load) in LOADS.into_iter().zip(all) {
        let mut rxe: Option<Vec<f64>> = None;
        for ((_, way), Measured { figures, failure }) in WAYS.into_iter().zip(of_load) {
            let mut row = Row::plain(format!("{place}: {load}, {way}"), unit, figures);
            row = row.unless(failure);
            rows.push(match &rxe {
                Some(rxe) => row.ratio_to(rxe),
                None => {
                    rxe = Some(row.figures.clone());
                    row
                }
            });
        }
    }
    Table { against, rows }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_compared_with_rxe_or_says_why_not() {
        let mut all = All::default();
        for (at, measured) in all[0].iter_mut().enumerate() {
            measured.figures = vec![2.0 * (at + 1) as f64];
        }
        all[1][0].failure = Some("a".to_owned());
        all[1][1].figures = vec![1.0];
        let table = table(all, true);
        assert_eq!(table.rows.len(), LOADS.len() * WAYS.len());
        let ratios: Vec<_> = table.rows.iter().map(Row::ratio).take(5).collect();
        assert_eq!(ratios, [None, Some(2.0), Some(3.0), None, None]);
        assert!(table.rows[0].name.starts_with("emulated: "));
    }

    #[test]
    fn what_is_no_figure_is_a_failure() {
        let mib = |average| figure(Ok(vec![65536.0, 200.0, 9.0, average, 0.1]), &LOADS[0]);
        assert_eq!(mib(2.0).unwrap(), 2.097_152);
        assert!(mib(0.0).is_err() && mib(f64::INFINITY).is_err() && mib(f64::NAN).is_err());
        assert!(figure(Ok(Vec::new()), &LOADS[0]).is_err());
    }
}
