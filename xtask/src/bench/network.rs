//! A network that loses packets, and one that is too slow for what it is to carry: two namespaces
//! joined by a veth pair, with nftables and a token bucket as the switch between them.

use super::pair::numbers;
use super::program::LIMIT;
use super::table::{Row, Table};
use anyhow::{Context, Result, bail};
use system::{Finished, Namespace, Run, Running};

/// Streams that share the slow link.
const STREAMS: usize = 16;
/// What the slow link carries, in bits and in GB a second.
const LINK: &str = "1600mbit";
const LINK_GB: f64 = 0.2;

/// Measures it all, round by round; nothing where namespaces or nftables are not to be had.
pub(super) fn measure(rounds: u32) -> Result<Table> {
    let [mut write, mut write_lossy, mut read, mut read_lossy] = [const { Vec::new() }; 4];
    let (mut sum, mut share) = (Vec::new(), Vec::new());
    let possible = system::is_root() && system::has("nft") && system::has("tc");
    for round in 0..if possible { rounds } else { 0 } {
        eprintln!("round {} of {rounds}", round + 1);
        for (program, clean, lossy) in [
            ("ib_write_bw", &mut write, &mut write_lossy),
            ("ib_read_bw", &mut read, &mut read_lossy),
        ] {
            let line = format!("{program} -s 1048576 -n 2000");
            clean.push(single(&hosts(), &line)?);
            lossy.push(single(&losing(hosts()), &line)?);
        }
        let rates = streams(&slow(hosts()), "ib_write_bw -s 65536 -D 6", STREAMS)?;
        sum.push(rates.iter().sum());
        let least = rates.iter().copied().fold(f64::INFINITY, f64::min);
        share.push(rates.iter().copied().fold(0.0, f64::max) / least);
    }
    let link = vec![LINK_GB; sum.len()];
    let many = format!("{STREAMS} WRITE streams onto a link of {LINK_GB} GB/s that marks packets");
    let rows = vec![
        Row::plain("RDMA WRITE 1 MiB between hosts, packets one by one", "GB/s", write.clone()),
        Row::plain("the same, one packet lost in a hundred", "GB/s", write_lossy).ratio_to(&write),
        Row::plain("RDMA READ 1 MiB between hosts, packets one by one", "GB/s", read.clone()),
        Row::plain("the same, one packet lost in a hundred", "GB/s", read_lossy).ratio_to(&read),
        Row::plain(many, "GB/s", sum).ratio_to(&link),
        Row::plain("the fastest of these streams to the slowest", "to 1", share).at_most(2.0),
    ];
    Ok(Table { against: "share of whole", rows })
}

/// Two hosts whose packets leave one by one, so that they are lost and marked one by one.
fn hosts() -> (Namespace, Namespace) {
    let (left, right) = system::veth_pair("bench", 9000);
    for host in [&left, &right] {
        host.output("ip link set wire gso_max_segs 1");
    }
    (left, right)
}

/// One packet in a hundred is lost, both ways.
fn losing(hosts: (Namespace, Namespace)) -> (Namespace, Namespace) {
    for host in [&hosts.0, &hosts.1] {
        rule(host, "prerouting", "numgen random mod 100 < 1 drop");
    }
    hosts
}

/// The second host's link is slow. It marks what finds it nearly full, and has room for less than a
/// megabyte.
fn slow(hosts: (Namespace, Namespace)) -> (Namespace, Namespace) {
    let full = "limit rate over 190 mbytes/second burst 128 kbytes";
    rule(&hosts.1, "postrouting", &format!("ip ecn ect0 {full} ip ecn set ce"));
    let bucket = format!("tbf rate {LINK} burst 64kb limit 768kb");
    hosts.1.output(&format!("tc qdisc add dev wire root {bucket}"));
    hosts
}

fn rule(host: &Namespace, hook: &str, what: &str) {
    for line in [
        "add table inet net",
        &format!("add chain inet net packets {{ type filter hook {hook} priority 0 ; }}")[..],
        &format!("add rule inet net packets udp dport 4791 {what}")[..],
    ] {
        host.output(&format!("nft \"{line}\""));
    }
}

fn single(hosts: &(Namespace, Namespace), line: &str) -> Result<f64> {
    streams(hosts, line, 1)?.first().copied().context("no figure")
}

/// Average of each of `count` pairs of programs that run at the same time, in GB/s.
fn streams(hosts: &(Namespace, Namespace), line: &str, count: usize) -> Result<Vec<f64>> {
    let ports: Vec<u16> = (0..count).map(|_| system::port()).collect();
    let end = |host: &Namespace, port: u16| {
        let line = format!("{line} -d peerdma0 -x 0 -F -p {port} --report_gbits");
        Run::hca(&line).within(host).limit(LIMIT)
    };
    let mut servers: Vec<Running> = ports.iter().map(|&port| end(&hosts.0, port).start()).collect();
    for (server, &port) in servers.iter_mut().zip(&ports) {
        system::listening(port, Some(&hosts.0), server);
    }
    let clients: Vec<Running> =
        ports.iter().map(|&port| end(&hosts.1, port).arg("198.18.9.1").start()).collect();
    let clients: Vec<Finished> = clients.into_iter().map(Running::finish).collect();
    let rates = clients.iter().map(|client| {
        if !client.succeeded() {
            bail!("{client}");
        }
        let line = client.stdout.lines().skip_while(|line| !line.contains("#bytes")).nth(1);
        let figures = numbers(line.with_context(|| format!("no figures in {client}"))?);
        figures.get(3).map(|gbit| gbit / 8.0).context("no average")
    });
    rates.collect()
}
