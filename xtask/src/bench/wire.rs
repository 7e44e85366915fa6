//! The wire: our UDP path beside bare GSO/GRO sockets and beside UCX over TCP, in the same run.

use super::pair::{perftest, ucx};
use super::program::{output, target};
use super::table::{Row, Table};
use anyhow::{Context, Result};
use system::Run;

/// `net.core.rmem_max` of an untuned host.
const STOCK_BUFFER_BYTES: &str = "212992";
const MESSAGE_BYTES: &str = "1048576";

/// Measures it all, round by round.
pub(super) fn measure(rounds: u32) -> Result<Table> {
    let mut bare = [Vec::new(), Vec::new()];
    let mut write = [Vec::new(), Vec::new()];
    let (mut send_lat, mut write_lat, mut ucx_bw, mut ucx_lat) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        for (index, stock) in [false, true].into_iter().enumerate() {
            bare[index].push(bare_gb_per_second(stock)?);
            write[index].push(write_gb_per_second(stock)?);
        }
        send_lat.push(latency_us("ib_send_lat")?);
        write_lat.push(latency_us("ib_write_lat")?);
        if system::has("ucx_perftest") {
            let tag_bw = format!("tag_bw -s {MESSAGE_BYTES} -n 2000");
            let mib = ucx("tcp", &tag_bw)?.get(5).copied().context("no bandwidth")?;
            ucx_bw.push(mib / 1e3 * 1.048_576);
            let tag_lat = ucx("tcp", "tag_lat -s 8 -n 20000")?;
            ucx_lat.push(tag_lat.get(1).copied().context("no typical latency")?);
        }
    }
    let [bare_large, bare_stock] = bare;
    let [write_large, write_stock] = write;
    let rows = vec![
        Row::plain("bare GSO/GRO sockets, large buffers", "GB/s", bare_large.clone()),
        Row::plain("RDMA WRITE 1 MiB, large buffers", "GB/s", write_large).ratio_to(&bare_large),
        Row::plain("bare GSO/GRO sockets, stock rmem_max", "GB/s", bare_stock.clone()),
        Row::plain("RDMA WRITE 1 MiB, stock rmem_max", "GB/s", write_stock).ratio_to(&bare_stock),
        Row::plain("UCX over tcp, tag, 1 MiB", "GB/s", ucx_bw),
        Row::plain("SEND latency, 8 B", "us", send_lat),
        Row::plain("RDMA WRITE latency, 8 B", "us", write_lat),
        Row::plain("UCX over tcp, tag latency, 8 B", "us", ucx_lat),
    ];
    Ok(Table { against: "share of bare", rows })
}

fn bare_gb_per_second(stock: bool) -> Result<f64> {
    let speed = Run::program(target().join("examples/speed"));
    let text = output(speed.args(&[
        "bare",
        "--mtu",
        "4096",
        "--rounds",
        "1",
        "--seconds",
        "2",
        "--json",
    ]))?;
    // The example measures both buffers, the large one first.
    let figures: Vec<f64> = text
        .split("\"gb_per_second\":")
        .skip(1)
        .filter_map(|rest| rest.split(',').next()?.parse().ok())
        .collect();
    figures.get(usize::from(stock)).copied().with_context(|| format!("no figure in {text}"))
}

fn write_gb_per_second(stock: bool) -> Result<f64> {
    let line = format!("ib_write_bw -s {MESSAGE_BYTES} -n 8000 --report_gbits");
    let buffer = |run: Run| match stock {
        true => by_packets(run).env("PEERDMA_RECEIVE_BUFFER", STOCK_BUFFER_BYTES),
        false => by_packets(run),
    };
    perftest(&line, buffer)?.get(3).map(|gbit| gbit / 8.0).context("no average")
}

/// On one host nothing would go by the wire otherwise.
fn by_packets(run: Run) -> Run {
    run.option("--link=roce")
}

fn latency_us(program: &str) -> Result<f64> {
    let figures = perftest(&format!("{program} -s 8 -n 20000"), by_packets)?;
    figures.get(4).copied().context("no typical latency")
}
