//! The speed table of the README: our UDP path beside bare GSO/GRO sockets and beside UCX over TCP, in the same run.
//!
//! Everything runs in a network namespace of its own, where only loopback exists and its MTU carries the path MTU of
//! 4096. Rounds are interleaved and ratios taken within a round, so that a machine whose speed drifts does not decide.

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use system::Run;

/// `net.core.rmem_max` of an untuned host.
const STOCK_BUFFER_BYTES: &str = "212992";
const MESSAGE_BYTES: &str = "1048576";
/// How long one program may take, which needs some ten seconds: perftest's latency programs wait for ever for a peer that
/// failed, since they spin on memory only.
const LIMIT: Duration = Duration::from_secs(120);

/// One row: what was measured, one figure a round.
struct Row {
    name: &'static str,
    unit: &'static str,
    figures: Vec<f64>,
    /// Figures of the same rounds to divide by.
    against: Option<Vec<f64>>,
}

/// Builds what is measured and runs the rounds in a fresh namespace.
///
/// # Errors
/// When something is missing, with what to install.
pub fn run(rounds: u32, json: bool) -> Result<bool> {
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
pub fn inside(rounds: u32, json: bool) -> Result<bool> {
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
    let row = |name, unit, figures| Row { name, unit, figures, against: None };
    let [bare_large, bare_stock] = bare;
    let [write_large, write_stock] = write;
    let ratio = |name, figures, against: &Vec<f64>| Row {
        name,
        unit: "GB/s",
        figures,
        against: Some(against.clone()),
    };
    let rows = [
        row("bare GSO/GRO sockets, large buffers", "GB/s", bare_large.clone()),
        ratio("RDMA WRITE 1 MiB, large buffers", write_large, &bare_large),
        row("bare GSO/GRO sockets, stock rmem_max", "GB/s", bare_stock.clone()),
        ratio("RDMA WRITE 1 MiB, stock rmem_max", write_stock, &bare_stock),
        row("UCX over tcp, tag, 1 MiB", "GB/s", ucx_bw),
        row("SEND latency, 8 B", "us", send_lat),
        row("RDMA WRITE latency, 8 B", "us", write_lat),
        row("UCX over tcp, tag latency, 8 B", "us", ucx_lat),
    ];
    if json {
        print_json(&rows)
    } else {
        print_table(&rows)
    }
    Ok(true)
}

fn median(figures: &[f64]) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        let pairs = self.figures.iter().zip(self.against.as_ref()?);
        median(&pairs.map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>())
    }
}

fn print_table(rows: &[Row]) {
    println!("| what | median | best | share of bare |");
    println!("| --- | --- | --- | --- |");
    for row in rows {
        let Some(median) = median(&row.figures) else {
            println!("| {} | not installed | | |", row.name);
            continue;
        };
        let best = match row.unit {
            "us" => row.figures.iter().copied().fold(f64::INFINITY, f64::min),
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

fn print_json(rows: &[Row]) {
    let rows: Vec<String> = rows
        .iter()
        .map(|row| {
            let ratio = row.ratio().map_or("null".into(), |ratio| format!("{ratio:.4}"));
            format!(
                "{{\"what\":{:?},\"unit\":{:?},\"figures\":{:?},\"share_of_bare\":{ratio}}}",
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

/// Runs a server and, once it listens, its client; gives what the client said. Neither outlives this.
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

/// A figure of ucx_perftest's closing line: column 5 is MB/s on average, column 1 the typical latency.
fn ucx(test: &str, bytes: &str, count: &str, column: usize) -> Result<f64> {
    let port = system::port();
    let call = Run::plain("ucx_perftest").env("UCX_TLS", "tcp").env("UCX_NET_DEVICES", "lo");
    let options = format!("-t {test} -s {bytes} -n {count} -p {port}");
    let options: Vec<&str> = options.split_whitespace().collect();
    let text = pair(call.clone().args(&options), call.arg("127.0.0.1").args(&options), port)?;
    let line = text.lines().rev().find(|line| line.trim_start().starts_with("Final:"));
    let line = line.with_context(|| format!("no final line in {text}"))?;
    let words: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    words.get(column).copied().with_context(|| format!("no column {column} in {line}"))
}
