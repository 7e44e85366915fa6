//! Packets on a wire: between two namespaces, with the kernel's real segmentation, captured and
//! judged by programs that share no code with this one.

mod common;

use common::lab::*;
use common::*;
use link::{Batch, Endpoint, GidTable, Path, Trace};
use std::net::{Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Arc;
use test_support::{note_skip, skip};
use wire::Position::{First, Last, Middle};
use wire::ROCE_PORT;

/// An endpoint on the RoCE port in the calling thread's namespace.
fn endpoint() -> Endpoint {
    let (v4, _) = receive_socket(Ipv4Addr::UNSPECIFIED.into(), ROCE_PORT);
    let (v6, _) = receive_socket(Ipv6Addr::UNSPECIFIED.into(), ROCE_PORT);
    Endpoint::new(Some(v4), Some(v6), ROCE_PORT).unwrap()
}

fn paths() -> [Path; 2] {
    let labelled = Path { flow_label: 0x12345, ..path("fd77::1", "fd77::2") };
    [path("10.77.0.1", "10.77.0.2"), labelled]
}

/// A message of 42 packets: FIRST, MIDDLE and a shorter LAST.
const MESSAGE: usize = 42;

fn send_message(ep: &Endpoint, path: Path, len: usize) {
    let flow = ep.flow(path, 3 << 14).unwrap();
    let mut batch = Batch::new().unwrap();
    for psn in 0..MESSAGE as u32 {
        let (position, len) = match psn {
            0 => (First, len),
            41 => (Last, len / 2 + 1),
            _ => (Middle, len),
        };
        stage(&mut batch, ep, &flow, position, psn, len);
    }
    batch.flush(ep);
    assert_eq!(counter(ep, "send_other") + counter(ep, "send_unreachable"), 0);
}

/// ICRC of every packet in a capture, recomputed by `tests/tools/icrc_check.py`.
fn check_icrcs(file: &std::path::Path, packets: usize) {
    let tool = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/tools/icrc_check.py");
    let min = packets.to_string();
    let output = Command::new("python3").arg(tool).args(["--min", &min]).arg(file).output();
    let Ok(output) = output else { return note_skip("ICRC check needs python3") };
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(&format!("{packets} good, 0 bad")), "{said}");
}

/// Dissects a capture: every packet is RoCE and none is malformed.
fn dissect(file: &std::path::Path, packets: usize) {
    let output = Command::new("tshark")
        .args(["-n", "-o", "udp.check_checksum:FALSE", "-T", "fields", "-e", "infiniband.bth.psn"])
        .args(["-e", "_ws.malformed", "-e", "_ws.expert.severity", "-r"])
        .arg(file)
        .output();
    let Ok(output) = output else { return note_skip("dissection needs tshark") };
    let said = String::from_utf8_lossy(&output.stdout);
    let psns = said.lines().map(|line| line.trim_end().parse::<u32>());
    assert_eq!(psns.clone().count(), packets);
    for psn in psns {
        psn.unwrap_or_else(|_| panic!("malformed or with an expert's complaint:\n{said}"));
    }
}

#[test]
fn segments_cut_by_the_kernel_carry_right_icrcs() {
    in_lab(|lab| {
        lab.a.enter();
        ip("link set va gso_max_segs 1");
        let a = endpoint();
        let files = std::env::temp_dir().join(format!("link-veth-{}", std::process::id()));
        std::fs::create_dir_all(&files).unwrap();
        let sent_trace = Arc::new(Trace::create(&files.join("sent.pcap")).unwrap());
        a.set_trace(Some(sent_trace.clone()));
        lab.b.enter();
        let b = endpoint();
        let received_trace = Arc::new(Trace::create(&files.join("received.pcap")).unwrap());
        b.set_trace(Some(received_trace.clone()));
        let capture = Capture::new();
        for path in paths() {
            lab.a.enter();
            send_message(&a, path, 1024);
            let seen = collect(&b, MESSAGE);
            assert!(seen.iter().map(|packet| packet.psn).eq(0..MESSAGE as u32));
            for packet in seen {
                assert_eq!((packet.src, packet.dst), (path.src, path.dst));
                assert_eq!((packet.traffic_class, packet.hop_limit), (0x68, 61));
            }
        }
        assert_eq!(counter(&a, "tx_trains"), 4, "sent as trains");
        assert_eq!(counter(&b, "rx_trains"), 2 * MESSAGE as u64, "but cut on the way");
        assert_eq!(counter(&b, "rx_icrc_errors"), 0);

        let frames = capture.roce_frames();
        assert_eq!(frames.len(), 2 * MESSAGE);
        let identifications: Vec<[u8; 2]> =
            frames[..MESSAGE].iter().map(|frame| frame[18..20].try_into().unwrap()).collect();
        let identifications: Vec<_> = identifications.into_iter().map(u16::from_be_bytes).collect();
        // FIRST is longer than the others, so the packet after it is the shorter last of its train.
        let expected: Vec<_> = (0..2).chain(0..40).collect();
        assert_eq!(identifications, expected, "each train counts from 0");
        assert_eq!(frames[0][20..22], [0x40, 0], "DF");
        assert_eq!(frames[MESSAGE][14..18], [0x66, 0x81, 0x23, 0x45], "class and flow label");
        // The source port that Linux makes of this label.
        assert_eq!(frames[MESSAGE][54..56], (0xC000u16 | (0x2345 ^ 0x4)).to_be_bytes());

        write_pcap(&files.join("wire.pcap"), &frames);
        sent_trace.flush().unwrap();
        received_trace.flush().unwrap();
        for file in ["wire.pcap", "sent.pcap", "received.pcap"] {
            check_icrcs(&files.join(file), 2 * MESSAGE);
            dissect(&files.join(file), 2 * MESSAGE);
        }
        std::fs::remove_dir_all(&files).unwrap();
    });
}

#[test]
fn trains_cross_a_veth_pair_whole() {
    in_lab(|lab| {
        lab.a.enter();
        let a = endpoint();
        lab.b.enter();
        let b = endpoint();
        lab.a.enter();
        for path in paths() {
            send_message(&a, path, 1024);
            collect(&b, MESSAGE);
        }
        assert_eq!(counter(&b, "rx_trains"), 4);
        assert_eq!(counter(&a, "gso_refusals"), 0);
    });
}

#[test]
fn trains_that_gro_puts_together_are_accepted() {
    if !test_support::has("ethtool") {
        skip!("ethtool is not installed");
    }
    in_lab(|lab| {
        lab.a.enter();
        ip("link set va gso_max_segs 1");
        let a = endpoint();
        lab.b.enter();
        // The receiving end of a veth pair then joins what the sending end cut.
        command("ethtool", "-K vb gro on rx-udp-gro-forwarding on");
        let b = endpoint();
        lab.a.enter();
        for path in paths() {
            for _ in 0..4 {
                send_message(&a, path, 1024);
                collect(&b, MESSAGE);
            }
        }
        assert_eq!(counter(&b, "rx_icrc_errors"), 0);
        let (trains, datagrams) = (counter(&b, "rx_trains"), counter(&b, "rx_datagrams"));
        assert!(trains < datagrams, "{trains} trains of {datagrams} datagrams");
    });
}

#[test]
fn packets_over_the_path_mtu_are_counted() {
    in_lab(|lab| {
        lab.a.enter();
        let a = endpoint();
        for (index, path) in paths().into_iter().enumerate() {
            send_message(&a, path, 4096);
            // The LAST is half as long, and still too long for 1500.
            assert_eq!(counter(&a, "send_too_big"), (index as u64 + 1) * MESSAGE as u64);
        }
        assert_eq!(counter(&a, "gso_refusals"), 0, "the length was the reason");
    });
}

#[test]
fn link_local_addresses_work_with_their_interface() {
    in_lab(|lab| {
        lab.b.enter();
        let b = endpoint();
        let there = GidTable::new().unwrap();
        lab.a.enter();
        let a = endpoint();
        let here = GidTable::new().unwrap();
        let local = |table: &GidTable| {
            let mut entries = table.iter().map(|(_, entry)| entry.clone());
            entries.find(|entry| entry.ip.to_string().starts_with("fe80")).unwrap()
        };
        let (src, dst) = (local(&here), local(&there));
        let path = Path {
            src: src.ip,
            dst: dst.ip,
            scope_id: src.ifindex,
            traffic_class: 0,
            hop_limit: 0,
            flow_label: 0,
            ethernet: None,
        };
        send_message(&a, path, 512);
        let seen = collect(&b, MESSAGE);
        assert_eq!((seen[0].src, seen[0].ifindex), (src.ip, dst.ifindex));
        assert_eq!(seen[0].hop_limit, 64, "the kernel's default");
    });
}

#[test]
fn gids_follow_the_addresses() {
    in_lab(|lab| {
        lab.a.enter();
        let listed = |table: &GidTable| -> Vec<(usize, String)> {
            let entries = table.iter();
            entries.map(|(index, entry)| (index, entry.ip.to_string())).collect()
        };
        let mut table = GidTable::new().unwrap();
        let at_first = listed(&table);
        assert_eq!(at_first.len(), 5, "{at_first:?}");
        assert_eq!(at_first[0], (0, "10.77.0.1".to_owned()));
        assert_eq!(at_first[1], (1, "fd77::1".to_owned()));
        assert!(at_first[2].1.starts_with("fe80::"));
        assert_eq!(at_first[3], (3, "127.0.0.1".to_owned()));
        assert_eq!(at_first[4], (4, "::1".to_owned()));
        let entry = table.get(0).unwrap();
        assert_eq!((entry.ifname.as_str(), entry.mtu, entry.up), ("va", 1500, true));
        assert_eq!(table.active_mtu(), 1024);

        ip("addr add 10.77.0.9/24 dev va");
        assert_eq!(table.refresh().unwrap().added, [5]);
        ip("addr del fd77::1/64 dev va");
        ip("link set va mtu 4200");
        let changes = table.refresh().unwrap();
        assert_eq!((changes.removed, changes.changed), (vec![1], vec![0, 2, 5]));
        assert_eq!(table.active_mtu(), 4096);
        ip("addr add fd77::5/64 dev va nodad");
        assert_eq!(table.refresh().unwrap().added, [1]);
        assert_eq!(table.get(1).unwrap().ip.to_string(), "fd77::5");
        ip("link set va down");
        assert_eq!(
            listed(&{
                table.refresh().unwrap();
                table
            }),
            at_first[3..]
        );
    });
}
