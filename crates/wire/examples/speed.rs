//! Prints what a packet costs in this room: ns to parse and to emit, and GB/s of ICRC beside bare
//! crc32fast.
//!
//! `cargo run --release -p wire --example speed`

use std::hint::black_box;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};
use wire::icrc::{Addresses, Checker, FlowCrc, compute};
use wire::{Headers, MAX_HEADERS_LEN, Opcode};

/// Nanoseconds a call: the best of five runs of 40 ms, which is what an undisturbed core does.
fn ns(mut call: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..5 {
        let mut calls = 0u32;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(40) {
            (0..1000).for_each(|_| call());
            calls += 1000;
        }
        best = best.min(begin.elapsed().as_nanos() as f64 / f64::from(calls));
    }
    best
}

fn main() {
    println!("{:28} {:>9} {:>9}", "opcode", "parse ns", "emit ns");
    for byte in [0x04, 0x07, 0x0a, 0x11, 0x13, 0x64, 0xab] {
        let mut packet = [0; 128];
        packet[0] = byte;
        let (headers, _) = Headers::parse(&packet).expect("zeros parse");
        let parse = ns(|| {
            let (headers, payload) = Headers::parse(black_box(&packet)).expect("zeros parse");
            black_box((&headers, payload));
        });
        let mut out = [0; MAX_HEADERS_LEN];
        let emit = ns(|| {
            black_box(&headers).emit(black_box(&mut out));
        });
        let Opcode { service, operation, position, .. } = headers.bth.opcode;
        let name = format!("{service:?} {operation:?} {position:?}");
        println!("{name:28} {parse:9.1} {emit:9.1}");
    }

    let addresses = Addresses::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    println!("\n{:28} {:>9} {:>9} {:>9}", "ns (GB/s)", "64 B", "1 KiB", "4 KiB");
    let packets = [64, 1024, 4096].map(|payload| vec![0x5a; payload + wire::BTH_LEN]);
    let row = |name: &str, call: &mut dyn FnMut(&[u8])| {
        print!("{name:28}");
        for packet in &packets {
            let cost = ns(|| call(black_box(packet)));
            print!(" {:>15}", format!("{cost:.1} ({:.1})", packet.len() as f64 / cost));
        }
        println!();
    };
    row("crc32fast alone", &mut |packet| {
        black_box(crc32fast::hash(packet));
    });
    row("icrc::compute", &mut |packet| {
        black_box(compute(addresses, 49_152, 7, packet));
    });
    let flow = FlowCrc::new(addresses, 49_152);
    let mut identification = 0u16;
    row("FlowCrc::icrc", &mut |packet| {
        identification = identification.wrapping_add(1);
        black_box(flow.icrc(identification, packet));
    });
    for (name, hint) in [("Checker, hint right", 7), ("Checker, hint wrong", 1234)] {
        let mut checker = Checker::new();
        let sums: Vec<_> = packets.iter().map(|packet| flow.icrc(7, packet)).collect();
        row(name, &mut |packet| {
            let sum = match packet.len() {
                76 => sums[0],
                1036 => sums[1],
                _ => sums[2],
            };
            let found = checker.check(addresses, 49_152, hint, packet, sum);
            assert_eq!(black_box(found), Some(7));
        });
    }
}
