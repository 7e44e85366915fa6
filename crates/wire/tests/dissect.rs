//! Foreign judges over one packet of every opcode: Wireshark's dissector reads our fields, and a
//! Python program written apart from this crate recomputes our ICRCs. Without its judge a test is
//! skipped.

mod common;

use common::{Link, Sample, pcap, samples};
use std::path::PathBuf;
use std::process::{Command, Output};
use test_support::note_skip;
use wire::{Operation, Service};

fn write_pcap(name: &str, link: Link, packets: &[Vec<u8>]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, pcap(link, packets)).expect("the test's folder is writable");
    path
}

fn installed(program: &str, switch: &str) -> bool {
    let found = Command::new(program).arg(switch).output().is_ok_and(|out| out.status.success());
    if !found {
        note_skip(&format!("{program} is not installed"));
    }
    found
}

fn tshark(pcap: &PathBuf, switches: &[&str]) -> String {
    let out = Command::new("tshark").arg("-n").arg("-r").arg(pcap).args(switches).output();
    let out = out.expect("tshark starts");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("tshark prints UTF-8")
}

/// Wireshark's name of an opcode, made from its parts.
fn wireshark_name(sample: &Sample) -> String {
    use wire::Position::*;
    let opcode = sample.headers.bth.opcode;
    let service = match opcode.service {
        Service::Rc => "Reliable Connection (RC)",
        Service::Uc => "Unreliable Connection (UC)",
        Service::Ud => "Unreliable Datagram (UD)",
        Service::Xrc => "Extended Reliable Connection (XRC)",
        Service::Notification => "none",
    };
    let position = match opcode.position {
        First => "First",
        Middle => "Middle",
        Last => "Last",
        Only => "Only",
    };
    let operation = match opcode.operation {
        Operation::Send => format!("SEND {position}"),
        Operation::Write => format!("RDMA WRITE {position}"),
        Operation::ReadRequest => "RDMA READ Request".into(),
        Operation::ReadResponse => format!("RDMA READ response {position}"),
        Operation::Acknowledge => "Acknowledge".into(),
        Operation::AtomicAcknowledge => "ATOMIC Acknowledge".into(),
        Operation::CompareSwap => "CmpSwap".into(),
        Operation::FetchAdd => "FetchAdd".into(),
        Operation::Flush | Operation::AtomicWrite | Operation::CongestionNotification => {
            "unknown".into()
        }
    };
    let extra = match (opcode.imm, opcode.invalidate) {
        (true, _) => " with Immediate",
        (_, true) => " with Invalidate",
        _ => "",
    };
    format!("{service} - {operation}{extra} ({})", opcode.to_byte())
}

/// A number as tshark prints it: hexadecimal with 0x, decimal, or bytes in hexadecimal.
fn number(text: &str, bytes: bool) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None if bytes => u64::from_str_radix(text, 16),
        None if text == "True" => Ok(1),
        None if text == "False" => Ok(0),
        None => text.parse(),
    };
    Some(parsed.unwrap_or_else(|_| panic!("tshark printed {text:?} for a number")))
}

#[test]
fn wireshark_reads_every_packet_as_meant() {
    if !installed("tshark", "-v") {
        return;
    }
    // Wireshark 4.0 is older than the opcodes of annex A19, and takes 128 for a congestion
    // notification's.
    use Operation::{AtomicWrite, CongestionNotification, Flush};
    let unknown = |sample: &Sample| {
        let operation = sample.headers.bth.opcode.operation;
        matches!(operation, Flush | AtomicWrite | CongestionNotification)
    };
    let samples: Vec<_> = samples().into_iter().filter(|sample| !unknown(sample)).collect();
    let packets: Vec<_> = samples.iter().map(Sample::ip_packet).collect();
    let path = write_pcap("dissect.pcap", Link::Raw, &packets);

    let checksums = ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"];
    let text = tshark(&path, &[&["-V"][..], &checksums].concat());
    for complaint in ["Malformed", "Expert Info (Error", "Expert Info (Warning", "[Bad"] {
        let found: Vec<_> = text.lines().filter(|line| line.contains(complaint)).collect();
        assert!(found.is_empty(), "tshark complains: {found:?}");
    }
    let opcodes: Vec<_> =
        text.lines().filter_map(|line| line.trim().strip_prefix("Opcode: ")).collect();
    assert_eq!(opcodes.len(), samples.len());
    for (found, sample) in opcodes.iter().zip(&samples) {
        assert!(found.eq_ignore_ascii_case(&wireshark_name(sample)), "{found}: {sample:?}");
    }

    let icrc = |sample: &Sample| {
        let packet = sample.ip_packet();
        let end: [u8; 4] = packet[packet.len() - 4..].try_into().expect("four bytes");
        Some(u64::from(u32::from_be_bytes(end)))
    };
    type Expected<'a> = (&'a str, bool, Box<dyn Fn(&Sample) -> Option<u64> + 'a>);
    let field =
        |name, get: fn(&Sample) -> Option<u64>| -> Expected { (name, false, Box::new(get)) };
    let bytes = |name, get: fn(&Sample) -> Option<u64>| -> Expected { (name, true, Box::new(get)) };
    let expected: Vec<Expected> = vec![
        field("infiniband.bth.se", |s| Some(s.headers.bth.solicited.into())),
        field("infiniband.bth.m", |s| Some(s.headers.bth.migrated.into())),
        field("infiniband.bth.padcnt", |s| Some(s.headers.bth.pad.into())),
        field("infiniband.bth.tver", |_| Some(0)),
        field("infiniband.bth.p_key", |s| Some(s.headers.bth.pkey.into())),
        field("infiniband.bth.destqp", |s| Some(s.headers.bth.dest_qp.into())),
        field("infiniband.bth.a", |s| Some(s.headers.bth.ack_req.into())),
        field("infiniband.bth.psn", |s| Some(s.headers.bth.psn.get().into())),
        field("infiniband.deth.q_key", |s| s.headers.deth.map(|x| x.qkey.into())),
        field("infiniband.deth.srcqp", |s| s.headers.deth.map(|x| x.src_qp.into())),
        // Wireshark puts address and key of both RETH and AtomicETH into these.
        field("infiniband.reth.va", |s| {
            s.headers.reth.map(|x| x.va).or(s.headers.atomic.map(|x| x.va))
        }),
        field("infiniband.reth.r_key", |s| {
            s.headers.reth.map(|x| x.rkey).or(s.headers.atomic.map(|x| x.rkey)).map(u64::from)
        }),
        field("infiniband.reth.dmalen", |s| s.headers.reth.map(|x| x.len.into())),
        field("infiniband.atomiceth.swapdt", |s| s.headers.atomic.map(|x| x.swap_or_add)),
        field("infiniband.atomiceth.cmpdt", |s| s.headers.atomic.map(|x| x.compare)),
        field("infiniband.aeth.syndrome", |s| s.headers.aeth.map(|x| x.syndrome.to_byte().into())),
        field("infiniband.aeth.msn", |s| s.headers.aeth.map(|x| x.msn.into())),
        field("infiniband.atomicacketh.origremdt", |s| s.headers.atomic_ack),
        bytes("infiniband.immdt", |s| s.headers.imm.map(u64::from)),
        bytes("infiniband.ieth", |s| s.headers.invalidate.map(u64::from)),
        ("infiniband.invariant.crc", false, Box::new(icrc)),
    ];
    let mut switches = vec!["-T", "fields", "-E", "separator=|", "-E", "occurrence=f"];
    for (name, ..) in &expected {
        switches.extend(["-e", name]);
    }
    let table = tshark(&path, &switches);
    let rows: Vec<_> = table.lines().collect();
    assert_eq!(rows.len(), samples.len());
    let mut compared = 0;
    for (row, sample) in rows.into_iter().zip(&samples) {
        // Wireshark 4.0 knows the names of XRC opcodes, but ends its dissection at the BTH.
        let extensions_read = sample.headers.bth.opcode.service != Service::Xrc;
        for (text, (name, is_bytes, get)) in row.split('|').zip(&expected) {
            if extensions_read || name.starts_with("infiniband.bth.") {
                assert_eq!(number(text, *is_bytes), get(sample), "{name} of {sample:?}");
                compared += 1;
            }
        }
    }
    println!("{} packets dissected, {compared} fields equal", samples.len());
}

fn icrc_check(pcap: &PathBuf, switches: &[&str]) -> Output {
    let tool = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/tools/icrc_check.py");
    Command::new("python3").arg(tool).args(switches).arg(pcap).output().expect("python3 starts")
}

fn closing_line(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

#[test]
fn an_independent_program_finds_every_icrc_right() {
    if !installed("python3", "--version") {
        return;
    }
    let packets: Vec<_> = samples().iter().map(Sample::ip_packet).collect();
    let count = packets.len();
    for link in Link::ALL {
        let path = write_pcap(&format!("icrc-{link:?}.pcap"), link, &packets);
        let out = icrc_check(&path, &["--min", &count.to_string()]);
        assert_eq!(closing_line(&out), format!("{count} packets, {count} good, 0 bad"), "{link:?}");
        assert_eq!(out.status.code(), Some(0), "{link:?}");
    }
}

#[test]
fn the_independent_program_finds_wrong_packets() {
    if !installed("python3", "--version") {
        return;
    }
    let mut packets: Vec<_> = samples().iter().map(Sample::ip_packet).collect();
    let count = packets.len();
    // Covered bytes: identification on IPv4, payload, and the ICRC itself.
    packets[0][5] ^= 1;
    packets[1][100] ^= 0x10;
    *packets[2].last_mut().expect("not empty") ^= 0x80;
    // Cut short.
    packets[3].truncate(60);
    // Not covered: the TTL.
    packets[4][8] -= 1;
    let path = write_pcap("icrc-wrong.pcap", Link::Ethernet, &packets);
    let out = icrc_check(&path, &[]);
    assert_eq!(closing_line(&out), format!("{count} packets, {} good, 4 bad", count - 4));
    assert_eq!(out.status.code(), Some(1));

    let none = write_pcap("icrc-none.pcap", Link::Raw, &[]);
    assert_eq!(icrc_check(&none, &[]).status.code(), Some(0));
    assert_eq!(icrc_check(&none, &["--min", "1"]).status.code(), Some(1));
    std::fs::write(&none, b"not a capture, but longer than its header").expect("writable");
    assert_eq!(icrc_check(&none, &[]).status.code(), Some(2));
}
