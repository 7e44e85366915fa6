//! The wire: our UDP path beside bare GSO/GRO sockets, beside sockets whose programs do as much as
//! we must with each byte, and beside TCP, in the same run.

use super::contest::Contest;
use super::pair::{column, from_gbit, from_mib, iperf_gb_per_second, perftest, ucx};
use super::program::{output, peer, target};
use super::table::{Aim, Table};
use anyhow::{Context, Result};
use system::Run;

/// `net.core.rmem_max` of an untuned host.
const STOCK_BUFFER_BYTES: &str = "212992";
const MESSAGE_BYTES: u64 = 1 << 20;
const MTU: &str = "4096";
/// How long peers that end by the clock move bytes.
const SECONDS: u32 = 1;
const ROUND_TRIPS: &str = "20000";
/// Of our own: two programs that spin, beside the threads that they wait for, take milliseconds
/// each where others want the processors too.
const OUR_ROUND_TRIPS: u32 = 5000;
const RATE: &str = "-s 8 --post_list=16 -n 480000 -N --report_gbits";
/// Where UCX by TCP is below this share of what is to be had, we are to be ahead of it by as much.
const TCP_SHARE: f64 = 1.0 / 3.0;

/// Measures it all, round by round.
pub(super) fn measure(rounds: u32) -> Table {
    let mut contest = Contest::default();
    let checked = contest.add("GSO/GRO sockets that copy and check", "GB/s", checked);
    let iperf = contest.add("iperf3, one TCP stream", "GB/s", || iperf_gb_per_second(SECONDS));
    let tag = contest.add("UCX over tcp, tag, 1 MiB", "GB/s", || {
        from_mib(&ucx("tcp", &format!("tag_bw -s {MESSAGE_BYTES} -n 2000 -w 50"))?)
    });
    let bare = contest.add("bare GSO/GRO sockets, large buffers", "GB/s", || bare(None));
    let write = contest.add("WRITE 1 MiB, large buffers", "GB/s", || write(None));
    contest.compare(write, checked, Aim::RatioAtLeast(0.9));
    contest.compare(write, iperf, Aim::RatioAtLeast(1.0));
    contest.compare(write, bare, Aim::RatioAtLeast(0.55));
    stock(&mut contest);
    latencies(&mut contest);
    for (name, program) in [("WRITEs", "ib_write_bw"), ("SENDs", "ib_send_bw")] {
        let of = format!("{name} of 8 B, 16 a post");
        let rate = contest.add(of, "M/s", move || {
            column(&perftest(&format!("{program} {RATE}"), by_packets)?, 4)
        });
        contest.aim(rate, Aim::AtLeast(0.5));
    }
    contest.run(rounds);
    let is_slow = contest.ratio(tag, checked).is_some_and(|share| share < TCP_SHARE);
    contest.compare(write, tag, is_slow.then_some(Aim::RatioAtLeast(1.0 / TCP_SHARE)));
    contest.table("ratio")
}

fn stock(contest: &mut Contest<'_>) {
    let buffer = Some(STOCK_BUFFER_BYTES);
    let peer = contest.add("bare GSO/GRO sockets, stock rmem_max", "GB/s", move || bare(buffer));
    let ours = contest.add("WRITE 1 MiB, stock rmem_max", "GB/s", move || write(buffer));
    contest.compare(ours, peer, Aim::RatioAtLeast(0.55));
}

fn latencies(contest: &mut Contest<'_>) {
    let pingpong = |way: &'static str| move || peer("bare_pingpong", &[way, ROUND_TRIPS]);
    let udp = contest.add("UDP ping-pong of two that spin", "us", pingpong("udp"));
    let send = contest.add("SEND latency 8 B, polling", "us", || latency("ib_send_lat"));
    contest.compare(send, udp, Aim::RatioAtMost(1.3));
    let name = "UDP ping-pong by threads in epoll, programs spin on memory";
    let epoll = contest.add(name, "us", pingpong("epoll"));
    let write = contest.add("WRITE latency 8 B", "us", || latency("ib_write_lat"));
    contest.compare(write, epoll, Aim::RatioAtMost(1.3));
    contest.add("UCX over tcp, tag latency, 8 B", "us", || {
        column(&ucx("tcp", &format!("tag_lat -s 8 -n {ROUND_TRIPS} -w 1000"))?, 1)
    });
}

/// The example that measures sockets.
fn speed(way: &str) -> Run {
    let seconds = SECONDS.to_string();
    let run = Run::program(target().join("examples/speed"));
    run.args(&[way, "--mtu", MTU, "--seconds", &seconds, "--rounds", "1", "--json"])
}

fn bare(buffer: Option<&str>) -> Result<f64> {
    let run = speed("bare");
    let text = output(match buffer {
        Some(bytes) => run.args(&["--buffer", bytes]),
        None => run,
    })?;
    // Without a buffer's length the example measures two, the large one first.
    let said: serde_json::Value = serde_json::from_str(&text)?;
    said[0]["gb_per_second"].as_f64().with_context(|| format!("no figure in {text}"))
}

fn checked() -> Result<f64> {
    let text = output(speed("checked"))?;
    text.trim().parse().with_context(|| text.clone())
}

fn write(buffer: Option<&str>) -> Result<f64> {
    let line = format!("ib_write_bw -s {MESSAGE_BYTES} -n 4000 -N --report_gbits");
    from_gbit(&perftest(&line, |run| match buffer {
        Some(bytes) => by_packets(run).env("PEERDMA_RECEIVE_BUFFER", bytes),
        None => by_packets(run),
    })?)
}

/// On one host nothing would go by the wire otherwise.
fn by_packets(run: Run) -> Run {
    run.option("--link=roce")
}

fn latency(program: &str) -> Result<f64> {
    column(&perftest(&format!("{program} -s 8 -n {OUR_ROUND_TRIPS}"), by_packets)?, 4)
}
