//! What is measured: a program, how it reaches its peer, and which plots its figures are points of.

use super::cpu::children_seconds;
use super::plan::{Extent, Plot};
use crate::bench::pair::{libfabric_us, perftest, ucx};
use anyhow::{Context, Result};
use std::cell::Cell;

/// Bytes of the messages whose rate is measured.
const SMALL_BYTES: u64 = 8;
/// Messages a completion in perftest. With several queue pairs it waits for ever where their number
/// is no multiple: it counts as many for the last completion, and stops polling too soon.
const CQ_MODERATION: u64 = 100;
/// Most messages of a latency test.
const ROUND_TRIPS: u64 = 10_000;
/// Messages with which UCX begins before it measures; its own choice takes minutes where they are
/// large.
const UCX_WARM_UP: u64 = 50;

/// One curve of one plot; that of bandwidth gives CPU time too.
pub struct Series {
    pub name: String,
    pub plot: Plot,
    program: Program,
    /// CPU time of both programs from start to end where they send next to nothing, this round.
    idle_seconds: Cell<f64>,
}

enum Program {
    /// A program of perftest's, and `--link` of `peerdma run`.
    Perftest(&'static str, &'static str),
    /// A test of ucx_perftest's, and `UCX_TLS`.
    Ucx(&'static str, &'static str),
    Libfabric,
}

/// Every curve, in the order of the legends: two that differ by their way only stand together.
pub fn all() -> Vec<Series> {
    let links = [("local", "link local"), ("roce", "link roce")];
    let ucx_ways = [("posix,cma", "shared memory"), ("tcp", "TCP")];
    let mut all = Vec::new();
    let mut add = |plot, name: &str, way: &str, program| {
        let name = format!("{name}, {way}");
        all.push(Series { name, plot, program, idle_seconds: Cell::new(0.0) });
    };
    for (plot, write, send) in [
        (Plot::Bandwidth, "ib_write_bw", "ib_send_bw"),
        (Plot::Latency, "ib_write_lat", "ib_send_lat"),
        (Plot::Rate, "ib_write_bw", "ib_send_bw"),
    ] {
        for (name, program) in [("WRITE", write), ("SEND", send)] {
            for (link, way) in links {
                add(plot, name, way, Program::Perftest(program, link));
            }
        }
    }
    if system::has("ucx_perftest") {
        for (plot, tag, put) in
            [(Plot::Bandwidth, "tag_bw", "ucp_put_bw"), (Plot::Latency, "tag_lat", "ucp_put_lat")]
        {
            for (name, test) in [("UCX tag", tag), ("UCX put", put)] {
                for (transports, way) in ucx_ways {
                    add(plot, name, way, Program::Ucx(test, transports));
                }
            }
        }
    }
    if system::has("fi_pingpong") {
        add(Plot::Latency, "libfabric", "TCP", Program::Libfabric);
    }
    all
}

impl Series {
    /// Before a round.
    pub fn begin(&self) {
        if self.plot == Plot::Bandwidth {
            let idle = self.timed(2, 32).map_or(0.0, |(_, seconds)| seconds);
            self.idle_seconds.set(idle);
        }
    }

    /// Measures at one message size, or number of queue pairs: the plots that it gives points of,
    /// with their figures.
    ///
    /// # Errors
    /// When a program fails; it shows what both ends said.
    pub fn measure(&self, x: u64, extent: &Extent) -> Result<Vec<(Plot, f64)>> {
        match self.plot {
            Plot::Bandwidth | Plot::Cpu => {
                let count = extent.count(x);
                let (gb_per_second, seconds) = self.timed(x, count)?;
                let cpu_ns = (seconds - self.idle_seconds.get()) * 1e9 / (count * x) as f64;
                let cpu = (cpu_ns > 0.0).then_some((Plot::Cpu, cpu_ns));
                Ok([(Plot::Bandwidth, gb_per_second)].into_iter().chain(cpu).collect())
            }
            Plot::Latency => {
                let count = (extent.count(x) / 8).clamp(32, ROUND_TRIPS);
                Ok(vec![(Plot::Latency, self.latency_us(x, count)?)])
            }
            Plot::Rate => Ok(vec![(Plot::Rate, self.messages_per_second(x, extent)?)]),
        }
    }

    /// GB/s, and CPU time of both programs in seconds.
    fn timed(&self, bytes: u64, count: u64) -> Result<(f64, f64)> {
        let before = children_seconds()?;
        let gb_per_second = self.gb_per_second(bytes, count)?;
        Ok((gb_per_second, children_seconds()? - before))
    }

    fn gb_per_second(&self, bytes: u64, count: u64) -> Result<f64> {
        let figure = match self.program {
            Program::Perftest(program, link) => {
                let line = format!("{program} -s {bytes} -n {count} -N --report_gbits");
                let figures = on_link(&line, link)?;
                // Each has six decimals: that is more digits of the rate where messages are small.
                let rate = figures.get(4).map(|millions| millions * bytes as f64 / 1e3);
                rate.filter(|_| bytes < 4096).or(figures.get(3).map(|gbit| gbit / 8.0))
            }
            Program::Ucx(test, transports) => {
                let test = format!("{test} -s {bytes} -n {count} -w {UCX_WARM_UP}");
                ucx(transports, &test)?.get(5).map(|mib| mib / 1e3 * 1.048_576)
            }
            Program::Libfabric => None,
        };
        figure.context("no bandwidth among the figures")
    }

    fn latency_us(&self, bytes: u64, count: u64) -> Result<f64> {
        let figure = match self.program {
            Program::Perftest(program, link) => {
                on_link(&format!("{program} -s {bytes} -n {count}"), link)?.get(4).copied()
            }
            Program::Ucx(test, transports) => {
                let test = format!("{test} -s {bytes} -n {count} -w {UCX_WARM_UP}");
                ucx(transports, &test)?.get(1).copied()
            }
            Program::Libfabric => Some(libfabric_us(bytes, count)?),
        };
        figure.context("no latency among the figures")
    }

    fn messages_per_second(&self, queue_pairs: u64, extent: &Extent) -> Result<f64> {
        let Program::Perftest(program, link) = self.program else { return Ok(0.0) };
        let count = (extent.messages * 2 / queue_pairs).max(1000).next_multiple_of(CQ_MODERATION);
        let line = format!("{program} -s {SMALL_BYTES} -n {count} -N --report_gbits");
        let figures = on_link(&format!("{line} -q {queue_pairs}"), link)?;
        figures.get(4).map(|millions| millions * 1e6).context("no rate among the figures")
    }
}

fn on_link(line: &str, link: &str) -> Result<Vec<f64>> {
    perftest(line, |run| run.option(format!("--link={link}")))
}
