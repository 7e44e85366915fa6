//! Batch to Receiver over the loopback interface, both address families.

mod common;

use common::*;
use link::{Batch, Endpoint, Receiver};
use mm::guard::fold::Fold;
use rustix::net::{SendFlags, sendto};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use wire::Position::{First, Last, Middle, Only};

const PATHS: [(&str, &str); 2] = [("127.0.0.1", "127.0.0.2"), ("::1", "::1")];

#[test]
fn packets_arrive_whole_with_what_their_headers_said() {
    let ep = mirror();
    for (src, dst) in PATHS {
        let path = path(src, dst);
        let flow = ep.flow(path, 3 << 14).unwrap();
        let mut batch = Batch::new().unwrap();
        stage(&mut batch, &ep, &flow, Only, 5, 13);
        batch.flush(&ep);
        let seen = collect(&ep, 1)[0];
        assert_eq!(seen.headers, write(Only, 5, 13));
        assert_eq!((seen.psn, seen.len), (5, 13));
        assert_eq!((seen.src, seen.dst), (path.src, path.dst));
        assert_eq!((seen.traffic_class, seen.hop_limit), (0x68, 61));
        assert_eq!(seen.udp_src, flow.source_port());
        assert_eq!(seen.ifindex, 1, "loopback");
    }
}

#[test]
fn equal_packets_travel_as_trains_and_others_alone() {
    for (src, dst) in PATHS {
        let ep = mirror();
        let flow = ep.flow(path(src, dst), 3 << 14).unwrap();
        let mut batch = Batch::new().unwrap();
        // FIRST alone, 9 MIDDLE and the shorter LAST as a train, then ONLY packets in pairs.
        stage(&mut batch, &ep, &flow, First, 0, 1024);
        for psn in 1..10 {
            stage(&mut batch, &ep, &flow, Middle, psn, 1024);
        }
        stage(&mut batch, &ep, &flow, Last, 10, 77);
        stage(&mut batch, &ep, &flow, Only, 11, 0);
        stage(&mut batch, &ep, &flow, Only, 12, 0);
        stage(&mut batch, &ep, &flow, Only, 13, 4);
        batch.flush(&ep);
        let seen = collect(&ep, 14);
        assert!(seen.iter().map(|packet| packet.psn).eq(0..14));
        assert_eq!(seen[9].len, 1024);
        assert_eq!(seen[10].len, 77);
        assert_eq!(counter(&ep, "tx_trains"), 4);
        assert_eq!(counter(&ep, "rx_trains"), 4, "trains arrive as they were sent");
        assert_eq!(counter(&ep, "tx_datagrams"), 14);
        assert_eq!(counter(&ep, "rx_datagrams"), 14);
        assert_eq!(counter(&ep, "tx_bytes"), counter(&ep, "rx_bytes"));
    }
}

#[test]
fn trains_end_at_the_segment_and_byte_limits() {
    let ep = mirror();
    let flow = ep.flow(path("127.0.0.1", "127.0.0.1"), 3 << 14).unwrap();
    let mut batch = Batch::new().unwrap();
    for psn in 0..130 {
        stage(&mut batch, &ep, &flow, Middle, psn, 256);
    }
    batch.flush(&ep);
    collect(&ep, 130);
    assert_eq!(counter(&ep, "tx_trains"), 3, "64 + 64 + 2");
    // 15 packets of 4112 bytes are 61680; a sixteenth would pass 65507.
    for psn in 0..30 {
        stage(&mut batch, &ep, &flow, Middle, psn, 4096);
    }
    batch.flush(&ep);
    collect(&ep, 30);
    assert_eq!(counter(&ep, "tx_trains"), 3 + 2);
    assert_eq!(counter(&ep, "gso_refusals"), 0);
}

#[test]
fn flows_are_not_mixed_in_a_train() {
    let ep = mirror();
    let one = ep.flow(path("127.0.0.1", "127.0.0.1"), 3 << 14).unwrap();
    let two = ep.flow(path("127.0.0.1", "127.0.0.3"), 3 << 14).unwrap();
    let mut batch = Batch::new().unwrap();
    for psn in 0..40 {
        stage(&mut batch, &ep, if psn % 2 == 0 { &one } else { &two }, Middle, psn, 512);
    }
    batch.flush(&ep);
    let seen = collect(&ep, 40);
    assert_eq!(counter(&ep, "tx_trains"), 40);
    for packet in seen {
        let flow = if packet.psn % 2 == 0 { &one } else { &two };
        assert_eq!((packet.udp_src, packet.dst), (flow.source_port(), flow.path().dst));
    }
}

#[test]
fn a_full_buffer_is_sent_without_being_asked() {
    let ep = mirror();
    let flow = ep.flow(path("::1", "::1"), 3 << 14).unwrap();
    let mut batch = Batch::new().unwrap();
    for psn in 0..200 {
        stage(&mut batch, &ep, &flow, Middle, psn, 4096);
    }
    assert!(counter(&ep, "tx_datagrams") > 100);
    batch.flush(&ep);
    assert_eq!(counter(&ep, "tx_trains"), 14, "15 packets each, none cut short but the last");
    let seen = collect(&ep, 200);
    assert!(seen.iter().map(|packet| packet.psn).eq(0..200));
}

#[test]
fn a_failed_fill_sends_nothing() {
    let ep = mirror();
    let flow = ep.flow(path("127.0.0.1", "127.0.0.1"), 3 << 14).unwrap();
    let mut batch = Batch::new().unwrap();
    stage(&mut batch, &ep, &flow, Middle, 0, 64);
    let failed = batch.packet(&ep, &flow, &write(Middle, 1, 64), 64, &mut |_, _| Err("unmapped"));
    assert_eq!(failed, Err("unmapped"));
    stage(&mut batch, &ep, &flow, Middle, 2, 64);
    batch.flush(&ep);
    let seen = collect(&ep, 2);
    assert!(seen.iter().map(|packet| packet.psn).eq([0, 2]));
}

#[test]
fn packets_longer_than_a_datagram_are_counted_as_lost() {
    let ep = mirror();
    let flow = ep.flow(path("127.0.0.1", "127.0.0.1"), 3 << 14).unwrap();
    let mut batch = Batch::new().unwrap();
    let mut fill = |_: &mut [u8], _: &mut Fold| -> Result<(), ()> { panic!("not to be filled") };
    for len in [65507, usize::MAX] {
        batch.packet(&ep, &flow, &write(Middle, 1, 0), len, &mut fill).unwrap();
    }
    assert_eq!(counter(&ep, "send_too_big"), 2);
    stage(&mut batch, &ep, &flow, Middle, 2, 65504 - 16);
    batch.flush(&ep);
    assert_eq!(collect(&ep, 1)[0].len, 65488, "the longest of all");
}

#[test]
fn sources_that_are_not_ours_are_counted_as_lost() {
    let ep = mirror();
    for (src, dst) in [("192.0.2.77", "127.0.0.1"), ("2001:db8::77", "::1")] {
        let before = counter(&ep, "send_unreachable");
        let flow = ep.flow(path(src, dst), 3 << 14).unwrap();
        let mut batch = Batch::new().unwrap();
        for psn in 0..3 {
            stage(&mut batch, &ep, &flow, Middle, psn, 64);
        }
        batch.flush(&ep);
        assert_eq!(counter(&ep, "send_unreachable"), before + 3, "{src}");
    }
    assert_eq!(counter(&ep, "gso_refusals"), 0, "segmentation was not the reason");
    assert_eq!(counter(&ep, "tx_datagrams"), 0);
}

#[test]
fn both_families_are_served_while_one_is_busy() {
    let ep = mirror();
    let v4 = ep.flow(path("127.0.0.1", "127.0.0.1"), 3 << 14).unwrap();
    let v6 = ep.flow(path("::1", "::1"), 3 << 14).unwrap();
    let mut batch = Batch::new().unwrap();
    let mut receiver = Receiver::new().unwrap();
    stage(&mut batch, &ep, &v6, Only, 1000, 8);
    let mut rounds = 0;
    let mut found = false;
    while !found {
        stage(&mut batch, &ep, &v4, Only, rounds, 8);
        batch.flush(&ep);
        assert_eq!(receiver.receive(&ep, 0, &mut |_| panic!("none was asked for")), 0);
        receiver.receive(&ep, 8, &mut |datagram| found |= datagram.src.is_ipv6());
        rounds += 1;
        assert!(rounds < 20, "IPv6 starves");
    }
}

#[test]
fn glances_find_what_comes_from_elsewhere_within_a_few() {
    let ep = mirror();
    let v4 = ep.flow(path("127.0.0.1", "127.0.0.1"), 3 << 14).unwrap();
    let v6 = ep.flow(path("::1", "::1"), 3 << 14).unwrap();
    let mut batch = Batch::new().unwrap();
    let mut receiver = Receiver::new().unwrap();
    for (busy, psn) in [(true, 0), (false, 1), (true, 2), (false, 3)] {
        // IPv4 delivers last.
        for _ in 0..3 {
            stage(&mut batch, &ep, &v4, Only, psn, 8);
            batch.flush(&ep);
            while receiver.glance(&ep, 8, &mut |seen| assert!(seen.src.is_ipv4())) == 0 {}
        }
        stage(&mut batch, &ep, &v6, Only, psn, 8);
        let (mut glances, mut found) = (0, false);
        while !found {
            if busy {
                stage(&mut batch, &ep, &v4, Only, psn, 8);
            }
            batch.flush(&ep);
            receiver.glance(&ep, 8, &mut |datagram| found |= datagram.src.is_ipv6());
            glances += 1;
            assert!(glances <= 20, "IPv6 starves beside IPv4 that is busy: {busy}");
        }
        while receiver.receive(&ep, 8, &mut |_| ()) > 0 {}
    }
}

/// Bytes of a good packet as they travel, taken with an ordinary socket.
fn captured(position: wire::Position, psn: u32, len: usize) -> (Vec<u8>, SocketAddr) {
    let (socket, port) = receive_socket(Ipv4Addr::LOCALHOST.into(), 0);
    let ep = Endpoint::new(None, None, port).unwrap();
    let flow = ep.flow(path("127.0.0.1", "127.0.0.1"), 3 << 14).unwrap();
    let mut batch = Batch::new().unwrap();
    stage(&mut batch, &ep, &flow, position, psn, len);
    batch.flush(&ep);
    let mut bytes = [0; 2048];
    let socket = std::net::UdpSocket::from(socket);
    let (len, from) = socket.recv_from(&mut bytes).unwrap();
    (bytes[..len].to_vec(), from)
}

/// Sends raw bytes to `ep` from a given port of 127.0.0.1.
fn inject(ep_port: u16, from: SocketAddr, datagrams: &[&[u8]]) {
    let (socket, _) = receive_socket(from.ip(), from.port());
    let to = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), ep_port);
    for bytes in datagrams {
        assert_eq!(sendto(&socket, bytes, SendFlags::empty(), &to).unwrap(), bytes.len());
    }
}

#[test]
fn damaged_packets_are_counted_and_not_handed_out() {
    let (good, from) = captured(Only, 4, 100);
    let (socket, port) = receive_socket(Ipv4Addr::UNSPECIFIED.into(), 0);
    let ep = Endpoint::new(Some(socket), None, port).unwrap();
    // Every single-bit error within 32 bits of another place is found for sure; the fifth byte of
    // the BTH is not covered.
    let damaged: Vec<Vec<u8>> = (0..good.len())
        .filter(|at| *at != 4)
        .map(|at| {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << (at % 8);
            bytes
        })
        .collect();
    for packet in &damaged {
        inject(port, from, &[packet]);
        wait(&ep);
        Receiver::new().unwrap().receive(&ep, 1, &mut |_| panic!("accepted"));
    }
    assert_eq!(counter(&ep, "rx_icrc_errors"), damaged.len() as u64);
    inject(port, from, &[&good]);
    assert_eq!(collect(&ep, 1)[0].psn, 4);
    assert_eq!(counter(&ep, "rx_malformed"), 0);

    // The source port is covered too: the same bytes from another one are no packet of that flow.
    let other = SocketAddr::new(from.ip(), 0);
    inject(port, other, &[&good]);
    wait(&ep);
    Receiver::new().unwrap().receive(&ep, 1, &mut |_| panic!("accepted"));
    assert_eq!(counter(&ep, "rx_icrc_errors"), damaged.len() as u64 + 1);
}

#[test]
fn strange_datagrams_are_counted_and_not_handed_out() {
    let (socket, port) = receive_socket(Ipv4Addr::UNSPECIFIED.into(), 0);
    let ep = Endpoint::new(Some(socket), None, port).unwrap();
    let from: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let long = vec![0xff; 65507];
    let strange: [&[u8]; 7] = [&[], &[1], &[0; 3], &[0; 4], &[0; 15], &[0xff; 16], &long];
    inject(port, from, &strange);
    let mut receiver = Receiver::new().unwrap();
    let mut trains = 0;
    while trains < strange.len() {
        wait(&ep);
        trains += receiver.receive(&ep, 16, &mut |_| panic!("accepted"));
    }
    assert_eq!(trains, strange.len());
    let refused = counter(&ep, "rx_malformed") + counter(&ep, "rx_icrc_errors");
    assert_eq!(refused, strange.len() as u64);
    assert_eq!(counter(&ep, "rx_datagrams"), 0);

    // A right ICRC over an opcode that does not exist.
    let (socket, port) = receive_socket(Ipv4Addr::UNSPECIFIED.into(), 0);
    let ep = Endpoint::new(Some(socket), None, port).unwrap();
    let mut bytes = vec![0; 12];
    bytes[0] = 0x1f;
    let localhost = Ipv4Addr::LOCALHOST;
    let (sender, udp_src) = receive_socket(IpAddr::from(localhost), 0);
    let addresses = wire::icrc::Addresses::V4(localhost, localhost);
    bytes.extend(wire::icrc::compute(addresses, udp_src, 0, &bytes).to_le_bytes());
    let to = SocketAddr::new(localhost.into(), port);
    sendto(&sender, &bytes, SendFlags::empty(), &to).unwrap();
    wait(&ep);
    receiver.receive(&ep, 1, &mut |_| panic!("accepted"));
    assert_eq!(counter(&ep, "rx_malformed"), 1);
    assert_eq!(counter(&ep, "rx_icrc_errors"), 0);
}

#[test]
fn a_full_receive_buffer_is_told() {
    let (socket, port) = receive_socket(Ipv4Addr::UNSPECIFIED.into(), 0);
    let ep = Endpoint::with_receive_buffer(Some(socket), None, port, 4096).unwrap();
    assert!((4096..=16384).contains(&ep.receive_buffer_bytes()));
    let flow = ep.flow(path("127.0.0.1", "127.0.0.1"), 3 << 14).unwrap();
    let mut batch = Batch::new().unwrap();
    for psn in 0..100 {
        stage(&mut batch, &ep, &flow, Only, psn, 1024);
        batch.flush(&ep);
    }
    assert_eq!(counter(&ep, "tx_datagrams"), 100);
    assert!(ep.receive_overflows() > 50);
    let mut received = 0;
    Receiver::new().unwrap().receive(&ep, 100, &mut |_| received += 1);
    assert_eq!(received + ep.receive_overflows(), 100);
}
