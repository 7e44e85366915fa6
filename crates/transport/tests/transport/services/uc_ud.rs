//! Unreliable connections and datagrams: what is not whole or not meant for the QP is dropped
//! without a word.

use crate::support::craft::packet;
use crate::support::{
    Faults, Loose, Node, PD, Packet, Pair, Region, Rng, Setup, port_one, send_wr,
};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use transport::Error;
use transport::values::*;
use transport::{Counter, Routing, Rx, SharedQueue};
use wire::Position::{First, Last, Middle, Only};
use wire::grh::Grh;
use wire::icrc::Addresses;
use wire::{Deth, GRH_LEN, Operation, Position, Service};

const FIRST_PSN: u32 = 1000;
const QKEY: u32 = 0x1111_1111;

/// Packets by place, PSN offset and length of payload.
type Parts = Vec<(Position, u32, usize)>;

fn node(kind: QpType) -> Node {
    let mut node = Node::new(kind, 11, None);
    node.connect(&Setup::new(kind));
    node
}

fn uc(operation: Operation, position: Position, psn: u32, len: usize) -> Packet {
    packet(Service::Uc, operation, position, psn).payload(len)
}

fn receives(node: &mut Node, count: u64, len: u32) -> Region {
    let region = node.register(u64::from(len) * count);
    for id in 0..count {
        node.post_recv(id, &[region.sge(id * u64::from(len), len)]);
    }
    region
}

/// Bytes of each message received, by request.
fn told(node: &Node) -> Vec<(u64, u32)> {
    assert!(node.told.received.iter().all(|done| done.status == WcStatus::Success));
    node.told.received.iter().map(|done| (done.wr_id, done.byte_len)).collect()
}

#[test]
fn uc_messages_arrive() {
    let mut node = node(QpType::Uc);
    let region = receives(&mut node, 2, 1024);
    let far = node.register(1024);
    let send = Operation::Send;
    let mut silent = Vec::new();
    silent.extend(node.feed(&uc(send, First, FIRST_PSN, 256)));
    silent.extend(node.feed(&uc(send, Middle, FIRST_PSN + 1, 256)));
    silent.extend(node.feed(&uc(send, Last, FIRST_PSN + 2, 3).imm(4)));
    let write = uc(Operation::Write, First, FIRST_PSN + 3, 256).reth(far.iova, far.key, 300);
    silent.extend(node.feed(&write));
    silent.extend(node.feed(&uc(Operation::Write, Last, FIRST_PSN + 4, 44).imm(5)));
    assert!(silent.is_empty(), "an unreliable responder never answers");
    assert_eq!(told(&node), [(0, 515), (1, 300)]);
    assert_eq!(node.told.received[0].imm_or_key, 4);
    assert_eq!(node.told.received[1].opcode, WcOpcode::RecvRdmaWithImm);
    assert_eq!(region.get(0, 515), [0xa5; 515]);
    assert_eq!(far.get(0, 300), [0xa5; 300]);
}

#[test]
fn a_missing_packet_spoils_its_uc_message_only() {
    let send = Operation::Send;
    // (packets with PSN offsets, lengths of the messages that must arrive)
    let cases: [(&str, Parts, Vec<u32>); 7] = [
        ("lost middle", vec![(First, 0, 256), (Last, 2, 9), (Only, 3, 7)], vec![7]),
        ("lost first", vec![(Last, 1, 9), (Only, 2, 7)], vec![7]),
        ("lost last", vec![(First, 0, 256), (Only, 2, 7)], vec![7]),
        ("lost last, no gap", vec![(First, 0, 256), (First, 1, 256), (Last, 2, 1)], vec![257]),
        ("whole message lost", vec![(Only, 0, 5), (Only, 9, 7)], vec![5, 7]),
        ("stray middle", vec![(Middle, 0, 256), (Last, 1, 9), (Only, 2, 7)], vec![7]),
        ("wrong size", vec![(First, 0, 255), (Last, 1, 9), (Only, 2, 7)], vec![7]),
    ];
    for (name, packets, lengths) in cases {
        println!("{name}");
        let mut node = node(QpType::Uc);
        receives(&mut node, 4, 1024);
        for (position, offset, len) in packets {
            assert!(node.feed(&uc(send, position, FIRST_PSN + offset, len)).is_empty());
        }
        // The receive request of a spoilt message serves the next one.
        let want: Vec<_> =
            lengths.into_iter().enumerate().map(|(id, len)| (id as u64, len)).collect();
        assert_eq!(told(&node), want, "{name}");
        assert_eq!(node.qp.state(), QpState::Rts);
    }
}

#[test]
fn a_spoilt_uc_message_restarts_its_receive_from_the_beginning() {
    let mut node = node(QpType::Uc);
    let region = receives(&mut node, 1, 512);
    node.feed(&uc(Operation::Send, First, FIRST_PSN, 256));
    let mut whole = uc(Operation::Send, Only, FIRST_PSN + 5, 4);
    whole.payload = vec![1, 2, 3, 4];
    node.feed(&whole);
    assert_eq!(told(&node), [(0, 4)]);
    assert_eq!(region.get(0, 5), [1, 2, 3, 4, 0xa5]);
}

#[test]
fn uc_drops_what_has_no_right_or_room() {
    let mut node = node(QpType::Uc);
    let far = node.register_as(PD, 256, Access::REMOTE_READ);
    let good = node.register(256);
    let write = |offset: u32, va: u64, key: u32| {
        uc(Operation::Write, Only, FIRST_PSN + offset, 16).reth(va, key, 16)
    };
    node.feed(&write(0, far.iova, far.key));
    node.feed(&write(1, good.iova + 241, good.key));
    node.feed(&write(2, good.iova, good.key ^ 1));
    assert_eq!(node.counted(Counter::RespRemoteAccessErrors), 3);
    assert_eq!(far.get(0, 256), [0; 256]);
    node.feed(&uc(Operation::Send, Only, FIRST_PSN + 3, 8));
    assert_eq!(node.counted(Counter::OutOfBuffer), 1);
    receives(&mut node, 1, 16);
    node.feed(&uc(Operation::Send, Only, FIRST_PSN + 4, 17));
    assert!(node.told.received.is_empty());
    node.feed(&uc(Operation::Send, Only, FIRST_PSN + 5, 16));
    assert_eq!(told(&node), [(0, 16)]);
    assert_eq!(node.qp.state(), QpState::Rts);
    assert!(node.told.events.is_empty());
}

#[test]
fn a_uc_receive_without_access_ends_the_qp() {
    let mut node = node(QpType::Uc);
    node.post_recv(1, &[Sge { addr: 0, length: 64, lkey: 0 }]);
    node.feed(&uc(Operation::Send, Only, FIRST_PSN, 8));
    assert_eq!(node.told.received[0].status, WcStatus::LocProtErr);
    assert_eq!(node.qp.state(), QpState::Err);
}

#[test]
fn uc_over_a_lossy_network_delivers_whole_messages_in_order() {
    for seed in 1..=20 {
        println!("seed {seed}");
        let faults = Faults { loss: seed % 4 * 8, duplicate: 5, reorder: 5, ..Faults::NONE };
        let mut pair = Pair::new(&Setup::new(QpType::Uc), 64 << 10, seed, faults);
        let count = 100;
        let own = pair.nodes[0].register(2048 * count);
        let bytes = Rng(seed).bytes(2048 * count as usize);
        own.set(0, &bytes);
        let inbox = pair.nodes[1].register(2048 * count);
        for id in 0..count {
            pair.nodes[1].post_recv(id, &[inbox.sge(2048 * id, 2048)]);
            let len = pair.rng.range(0, 2048) as u32;
            let op = SendOp::SendImm((id as u32) << 16 | len);
            pair.nodes[0].post_send(send_wr(id, op, &[own.sge(2048 * id, len)]));
            pair.step();
        }
        pair.settle();
        let sent: Vec<_> = pair.nodes[0].told.sent.iter().map(|done| done.wr_id).collect();
        assert_eq!(sent, (0..count).collect::<Vec<_>>(), "each completes when it is out");
        let got = &pair.nodes[1].told.received;
        assert!(got.len() >= 20, "some get through: {}", got.len());
        for done in got {
            let (id, len) = (u64::from(done.imm_or_key >> 16), done.imm_or_key & 0xffff);
            assert_eq!(done.byte_len, len);
            assert!(inbox.get(2048 * done.wr_id, len as usize) == own.get(2048 * id, len as usize));
        }
    }
}

fn datagram(qkey: u32, len: usize) -> Packet {
    let mut packet = packet(Service::Ud, Operation::Send, Only, 77).payload(len);
    packet.headers.deth = Some(Deth { qkey, src_qp: 0x4321 });
    packet
}

#[test]
fn a_datagram_arrives_behind_its_network_header() {
    let mut node = node(QpType::Ud);
    let region = receives(&mut node, 2, 256);
    let mut first = datagram(QKEY, 9).imm(3);
    first.headers.bth.solicited = true;
    node.feed(&first);
    let done = node.told.received[0];
    assert_eq!((done.byte_len, done.src_qp, done.sl), (49, 0x4321, 0xa));
    assert_eq!((done.flags, done.imm_or_key), (WcFlags::GRH | WcFlags::WITH_IMM, 3));
    assert!(done.solicited);
    assert_eq!(region.get(40, 10), [vec![0xa5; 9], vec![0]].concat());
    let grh = Grh::parse(&region.get(0, GRH_LEN).try_into().unwrap()).unwrap();
    let (IpAddr::V4(src), IpAddr::V4(dst)) = ("10.0.0.99".parse().unwrap(), node.ip) else {
        panic!()
    };
    assert_eq!(grh.addresses, Addresses::V4(src, dst));
    assert_eq!((grh.traffic_class, grh.hop_limit), (0x62, 63));
    // UDP header, BTH, DETH, immediate, payload, padding and ICRC.
    assert_eq!(grh.udp_len, 8 + 12 + 8 + 4 + 9 + 3 + 4);

    let (src, dst): (Ipv6Addr, Ipv6Addr) = ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
    let second = datagram(QKEY, 0);
    let rx = Rx {
        headers: &second.headers,
        payload: &second.payload,
        in_transit: None,
        src: src.into(),
        dst: dst.into(),
        traffic_class: 0,
        hop_limit: 1,
        vlan: Some(0x6005),
        routing: Routing::Ip,
        mtu: None,
    };
    node.with(|qp, cx| qp.receive(&rx, cx));
    let done = node.told.received[1];
    assert_eq!((done.byte_len, done.sl, done.vlan), (40, 0x9, Some(0x6005)));
    let grh = Grh::parse(&region.get(256, GRH_LEN).try_into().unwrap()).unwrap();
    assert_eq!(grh.addresses, Addresses::V6(src, dst));
    assert!(node.emitted().is_empty());
}

#[test]
pub fn a_datagram_with_the_wrong_qkey_is_dropped() {
    let mut node = node(QpType::Ud);
    receives(&mut node, 1, 256);
    for qkey in [0, QKEY + 1, QKEY | 1 << 31] {
        node.feed(&datagram(qkey, 8));
    }
    assert!(node.told.received.is_empty());
    assert_eq!(node.counted(Counter::RxDropped), 3);
    node.feed(&datagram(QKEY, 8));
    assert_eq!(told(&node), [(0, 48)]);
}

#[test]
fn a_datagram_without_room_is_dropped_and_costs_no_receive() {
    let mut node = node(QpType::Ud);
    node.feed(&datagram(QKEY, 8));
    assert_eq!(node.counted(Counter::OutOfBuffer), 1);
    receives(&mut node, 1, 64);
    node.feed(&datagram(QKEY, 25));
    assert!(node.told.received.is_empty());
    assert_eq!(node.counted(Counter::RespLocalLengthError), 1);
    node.feed(&datagram(QKEY, 24));
    assert_eq!(told(&node), [(0, 64)]);
}

#[test]
fn a_dropped_datagram_keeps_the_shared_receive_it_took() {
    let shared = Arc::new(Loose::default());
    let mut node = Node::new(QpType::Ud, 11, Some(SharedQueue::Plain(shared.clone())));
    node.connect(&Setup::new(QpType::Ud));
    let region = node.register(64);
    let scatter = [region.sge(0, 64)].into_iter().collect();
    shared.0.lock().unwrap().push_back(RecvWr { wr_id: 5, scatter });
    node.feed(&datagram(QKEY, 100));
    assert!(node.told.received.is_empty());
    node.feed(&datagram(QKEY, 8));
    assert_eq!(told(&node), [(5, 48)]);
}

fn to(remote_qpn: u32, remote_qkey: u32) -> Option<Datagram> {
    let ah = port_one();
    Some(Datagram { ah, remote_qpn, remote_qkey })
}

#[test]
fn datagrams_name_their_destination_and_source() {
    let mut node = node(QpType::Ud);
    let region = node.register(8192);
    let mut wr = send_wr(1, SendOp::SendImm(6), &[region.sge(0, 4096)]);
    wr.datagram = to(0x77, 0x2222);
    node.post_send(wr);
    let mut wr = send_wr(2, SendOp::Send, &[region.sge(0, 0)]);
    wr.datagram = to(0x78, 0x8000_0000);
    node.post_send(wr);
    let out = node.emitted();
    assert_eq!(out[0].headers.deth, Some(Deth { qkey: 0x2222, src_qp: 11 }));
    assert_eq!((out[0].headers.bth.dest_qp, out[0].headers.imm), (0x77, Some(6)));
    assert_eq!(out[0].payload.len(), 4096);
    // Bit 31 stands for the QP's own Q_Key.
    assert_eq!(out[1].headers.deth, Some(Deth { qkey: QKEY, src_qp: 11 }));
    assert_eq!((out[0].psn(), out[1].psn()), (5000, 5001));
    let sent: Vec<_> = node.told.sent.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(sent, [1, 2].map(|id| (id, WcStatus::Success)));
    let astray = send_wr(3, SendOp::Send, &[region.sge(0, 8)]);
    assert!(matches!(node.qp.post_send(astray), Err(Error::Invalid(_))), "no destination");
}

/// IBA C10-93.1.1: it is not sent, and that is no error.
#[test]
fn a_datagram_beyond_the_mtu_of_the_port_stays_here() {
    let mut node = node(QpType::Ud);
    let region = node.register(8192);
    node.out.port_mtu = 1024;
    for (id, len) in [(1, 1025), (2, 8192), (3, 1024)] {
        let mut wr = send_wr(id, SendOp::Send, &[region.sge(0, len)]);
        wr.datagram = to(0x77, 0x2222);
        node.post_send(wr);
    }
    let out = node.emitted();
    assert_eq!(out.iter().map(|packet| packet.payload.len()).collect::<Vec<_>>(), [1024]);
    let sent: Vec<_> = node.told.sent.iter().map(|done| (done.wr_id, done.status)).collect();
    assert_eq!(sent, [1, 2, 3].map(|id| (id, WcStatus::Success)));
    assert_eq!(node.counted(Counter::TxRefused), 2);
    assert_eq!(node.qp.state(), QpState::Rts);
}

#[test]
fn a_failed_unreliable_send_stops_the_send_queue_only() {
    for kind in [QpType::Uc, QpType::Ud] {
        let mut node = node(kind);
        let region = node.register(512);
        let wr = |id, sge| {
            let mut wr = send_wr(id, SendOp::Send, &[sge]);
            wr.datagram = if kind == QpType::Ud { to(1, 1) } else { None };
            wr
        };
        region.ram.broken.store(true, Relaxed);
        node.qp.post_send(wr(1, region.sge(0, 8))).unwrap();
        node.qp.post_send(wr(2, region.sge(0, 8))).unwrap();
        node.with(|qp, cx| qp.transmit(cx));
        assert_eq!(node.qp.state(), QpState::Sqe);
        node.post_send(wr(3, region.sge(0, 8)));
        let told_ids: Vec<_> =
            node.told.sent.iter().map(|done| (done.wr_id, done.status)).collect();
        let flush = WcStatus::WrFlushErr;
        assert_eq!(told_ids, [(1, WcStatus::LocProtErr), (2, flush), (3, flush)]);
        region.ram.broken.store(false, Relaxed);
        // It still receives.
        receives(&mut node, 1, 256);
        node.feed(&match kind {
            QpType::Ud => datagram(QKEY, 8),
            _ => uc(Operation::Send, Only, FIRST_PSN, 8),
        });
        assert_eq!(node.told.received.len(), 1);
        let attr = QpAttr { qp_state: QpState::Rts, ..node.qp.query() };
        node.modify(&attr, AttrMask::STATE).unwrap();
        node.post_send(wr(4, region.sge(0, 8)));
        assert_eq!(node.told.sent.last().map(|d| d.status), Some(WcStatus::Success));
        assert_eq!(node.emitted().len(), 1);
    }
}

#[test]
fn a_long_uc_message_leaves_room_for_others() {
    let mut node = node(QpType::Uc);
    let region = node.register(1 << 20);
    let far = Remote { addr: 0, rkey: 1 };
    node.post_send(send_wr(1, SendOp::Write(far), &[region.sge(0, 1 << 20)]));
    let mut out = node.emitted();
    let start = node.now;
    assert!(out.len() < 1024 && node.told.sent.is_empty());
    while node.told.sent.is_empty() {
        node.now = node.now.max(node.qp.deadline().unwrap());
        let more = node.timer();
        assert!(!more.is_empty() && more.len() < 1024);
        out.extend(more);
    }
    assert_eq!(out.len(), 4096);
    assert_eq!(node.qp.deadline(), None);
    // 4096 packets cost 1.4 MiB; the buffer of 256 KiB bears 100 MB/s.
    let took = node.now - start;
    assert!((12..16).contains(&took.as_millis()), "{took:?}");
}
