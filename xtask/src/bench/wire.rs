//! The wire: our UDP path beside bare GSO/GRO sockets and beside UCX over TCP, in the same run.

use super::program::{LIMIT, output, target};
use super::table::{Row, Table};
use anyhow::{Context, Result, bail};
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
            ucx_bw.push(ucx("tag_bw", MESSAGE_BYTES, "2000", 5)? / 1e3 * 1.048_576);
            ucx_lat.push(ucx("tag_lat", "8", "20000", 1)?);
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

/// Runs a server and, once it listens, its client; gives what the client said. Neither outlives
/// this.
fn pair(server: Run, client: Run, port: u16) -> Result<String> {
    let mut server = server.limit(LIMIT).start();
    system::listening(port, None, &mut server);
    let client = client.limit(LIMIT).finish();
    if !client.succeeded() {
        bail!("{client}\nits server said:\n{}", server.said());
    }
    let server = server.finish();
    if !server.succeeded() {
        bail!("{server}\nits client said:\n{}", client.stdout);
    }
    Ok(client.stdout)
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

/// Server and client of a program on the HCA; gives what the client said.
fn perftest(line: &str, stock: bool) -> Result<String> {
    let port = system::port();
    let mut server = Run::hca(&format!("{line} -d peerdma0 -x 0 -F -p {port}"));
    if stock {
        server = server.env("PEERDMA_RECEIVE_BUFFER", STOCK_BUFFER_BYTES);
    }
    let client = server.clone().arg("127.0.0.1");
    pair(server, client, port)
}

/// Words of the line of figures.
fn figures(text: &str) -> Result<Vec<f64>> {
    let line = text.lines().skip_while(|line| !line.contains("#bytes")).nth(1);
    let line = line.with_context(|| format!("no figures in {text}"))?;
    Ok(line.split_whitespace().filter_map(|word| word.parse().ok()).collect())
}

fn write_gb_per_second(stock: bool) -> Result<f64> {
    let line = format!("ib_write_bw -s {MESSAGE_BYTES} -n 8000 --report_gbits");
    let figures = figures(&perftest(&line, stock)?)?;
    // Columns: bytes, iterations, peak, average.
    figures.get(3).map(|gbit| gbit / 8.0).context("no average")
}

fn latency_us(program: &str) -> Result<f64> {
    let figures = figures(&perftest(&format!("{program} -s 8 -n 20000"), false)?)?;
    // Columns: bytes, iterations, least, greatest, typical.
    figures.get(4).copied().context("no typical latency")
}

/// A figure of ucx_perftest's closing line: column 5 is MB/s on average, column 1 the typical
/// latency.
fn ucx(test: &str, bytes: &str, count: &str, column: usize) -> Result<f64> {
    let port = system::port();
    let call =
        Run::plain(system::ucx_perftest()).env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", "lo");
    let options = format!("-t {test} -s {bytes} -n {count} -p {port}");
    let options: Vec<&str> = options.split_whitespace().collect();
    let text = pair(call.clone().args(&options), call.arg("127.0.0.1").args(&options), port)?;
    let line = text.lines().rev().find(|line| line.trim_start().starts_with("Final:"));
    let line = line.with_context(|| format!("no final line in {text}"))?;
    let words: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    words.get(column).copied().with_context(|| format!("no column {column} in {line}"))
}
