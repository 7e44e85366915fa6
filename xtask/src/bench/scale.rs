//! Many of everything, and what one more costs (`tests/c/processes/scale.c`): queue pairs, regions,
//! a device that idles, and buffers that another process exported.

use super::memory::NODE;
use super::program::Figures;
use super::table::{Row, Table};
use anyhow::Result;

/// How long a device is left alone, in seconds.
const IDLE: u32 = 60;
/// How long each number of queue pairs is kept busy, in seconds.
const BUSY: u32 = 3;

/// What many queue pairs carry beside one: in words, as the program's arguments, how it says how
/// fast that was, and the unit of that.
const LOADS: [(&str, &str, &str, &str, f64); 3] = [
    ("WRITE 64 KiB", "65536 SECONDS write", "GB/s", "GB/s", 1.0),
    ("READ 64 KiB", "65536 SECONDS read", "GB/s", "GB/s", 1.0),
    ("SEND 8 B", "8 SECONDS send", "messages a second", "M/s", 1e-6),
];
/// The ways that packets take, as switches, and in words.
const WAYS: [(&[&str], &str); 2] = [(&[], "to a neighbour"), (&["--link", "roce"], "by UDP")];

/// Measures it all.
pub(super) fn measure(rounds: u32) -> Result<Table> {
    let program = "scale";
    let mut plain = Figures::default();
    let mut busy: [[[Figures; 2]; LOADS.len()]; WAYS.len()] = Default::default();
    for round in 0..rounds {
        eprintln!("round {} of {rounds}", round + 1);
        plain.run(program, "pairs 10000", &[])?;
        plain.run(program, "regions 100000", &[])?;
        plain.run(program, &format!("exported {NODE}"), &[])?;
        for ((switches, _), of_way) in WAYS.iter().zip(&mut busy) {
            for ((_, load, ..), of_load) in LOADS.iter().zip(of_way) {
                let load = load.replace("SECONDS", &BUSY.to_string());
                for (count, figures) in [1, 1000].into_iter().zip(of_load) {
                    figures.run(program, &format!("busy {count} {load}"), switches)?;
                }
            }
        }
    }
    plain.run(program, &format!("idle {IDLE}"), &[])?;
    let mut rows = vec![
        Row::plain("10,000 queue pairs set up", "s", plain.of("set up, s")).at_most(3.0),
        Row::plain("one of them with its queues of one request", "B", {
            plain.of("bytes each, used")
        })
        .at_most(4096.0),
        Row::plain("10,000 queue pairs ended", "s", plain.of("ended, s")),
    ];
    for ((_, way), of_way) in WAYS.iter().zip(&busy) {
        for ((load, _, name, unit, scale), [one, many]) in LOADS.iter().zip(of_way) {
            let of = |figures: &Figures| {
                figures.of(name).into_iter().map(|figure| figure * scale).collect::<Vec<_>>()
            };
            let (one, many) = (of(one), of(many));
            rows.push(Row::plain(format!("{load} {way}, 1 queue pair"), unit, one.clone()));
            let name = format!("{load} {way}, 1,000 queue pairs");
            rows.push(Row::plain(name, unit, many).ratio_to(&one));
        }
    }
    let registered = |name: &str| plain.of(&format!("registered, us, {name}"));
    let first = registered("the first tenth");
    rows.push(Row::plain("register 4 KiB, of the first 10,000", "us", first.clone()));
    rows.push(Row::plain("register 4 KiB, of 100,000", "us", registered("all")).ratio_to(&first));
    let one = plain.of("WRITE to one, us");
    rows.push(Row::plain(
        "WRITE 1 B to one of 100,000 regions, always the same",
        "us",
        one.clone(),
    ));
    let name = "WRITE 1 B to each of 100,000 regions in turn";
    rows.push(Row::plain(name, "us", plain.of("WRITE to each, us")).ratio_to(&one));
    for (size, mapped) in [("1 MiB", "mmap 1 MiB, us"), ("1 GiB", "mmap 1024 MiB, us")] {
        let mebibytes = mapped.trim_start_matches("mmap ").trim_end_matches(", us");
        let mapped = plain.of(mapped);
        rows.push(Row::plain(format!("mmap with MAP_POPULATE, {size}"), "us", mapped.clone()));
        for by in ["its exporter", "another"] {
            let took = plain.of(&format!("usual {mebibytes} by {by}, us"));
            let name = format!("register {size}: dma-buf, by {by} process");
            rows.push(
                Row::plain(name.replace("exporter process", "exporter"), "us", took)
                    .ratio_to(&mapped),
            );
        }
    }
    let idle = |name: &str| plain.of(name);
    let name = format!("processor time of a device that idles for {IDLE} s");
    rows.push(Row::plain(name, "us", idle("microseconds of processor")).at_most(10_000.0));
    let name = format!("context switches of a device that idles for {IDLE} s");
    rows.push(Row::plain(name, "", idle("context switches")).at_most(60.0));
    Ok(Table { against: "ratio to the row before, or to mmap", rows })
}
