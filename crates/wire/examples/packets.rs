//! Writes a pcap with one packet of every opcode over IPv4 and IPv6, to look at with a protocol
//! analyser.
//!
//! `cargo run -p wire --example packets -- FILE.pcap [raw|ethernet|vlan|sll|sll2]`

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Link, pcap, samples};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next();
    let link = match arguments.next().as_deref() {
        None | Some("raw") => Some(Link::Raw),
        Some("ethernet") => Some(Link::Ethernet),
        Some("vlan") => Some(Link::Vlan),
        Some("sll") => Some(Link::Sll),
        Some("sll2") => Some(Link::Sll2),
        Some(_) => None,
    };
    let (Some(file), Some(link)) = (file, link) else {
        eprintln!("usage: packets FILE.pcap [raw|ethernet|vlan|sll|sll2]");
        return ExitCode::from(2);
    };
    let packets: Vec<_> = samples().iter().map(|sample| sample.ip_packet()).collect();
    if let Err(error) = std::fs::write(&file, pcap(link, &packets)) {
        eprintln!("{file}: {error}");
        return ExitCode::FAILURE;
    }
    println!("{} packets in {file}", packets.len());
    ExitCode::SUCCESS
}
