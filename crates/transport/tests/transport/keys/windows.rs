//! Memory windows: bound and invalidated by work requests in order, open to whom they shall be,
//! over good and bad networks.

use crate::support::craft::*;
use crate::support::{Faults, Node, PD, Packet, Pair, Region, Setup, send_wr};
use transport::Error;
use transport::values::*;
use wire::Position::Only;
use wire::{NakCode, Operation};

/// PSNs of [`Setup::new`].
const FIRST_PSN: u32 = 1000;
const SQ_PSN: u32 = 5000;
/// The QP of every [`node`].
const QPN: u32 = 11;
const FAR: Remote = Remote { addr: 0x7000, rkey: 0x1234 };

fn node_of(kind: QpType) -> Node {
    let mut node = Node::new(kind, QPN, None);
    node.connect(&Setup::new(kind));
    node
}

fn node() -> Node {
    node_of(QpType::Rc)
}

/// A region that allows windows but gives no remote access itself.
fn bindable(node: &mut Node) -> Region {
    node.register_as(PD, 1024, Access::LOCAL_WRITE | Access::MW_BIND)
}

/// A bind of bytes 100 to 199 of `region`.
fn bind(window: u32, region: &Region, access: Access) -> Bind {
    Bind {
        window,
        key: window.wrapping_add(1) & 0xff,
        region: region.key,
        addr: region.iova + 100,
        len: 100,
        access: access.bits(),
    }
}

fn key_of(bind: &Bind) -> u32 {
    bind.window & !0xff | bind.key & 0xff
}

/// Posts `op` and gives how it completed.
#[track_caller]
fn done(node: &mut Node, op: SendOp) -> WcStatus {
    let before = node.told.sent.len();
    node.post_send(send_wr(70, op.clone(), &[]));
    assert_eq!(node.told.sent.len(), before + 1, "a local operation completes at once");
    let done = node.told.sent[before];
    let opcode =
        if matches!(op, SendOp::BindMw(_)) { WcOpcode::BindMw } else { WcOpcode::LocalInv };
    assert_eq!((done.wr_id, done.opcode), (70, opcode));
    done.status
}

/// A node with a window over part of a region, and the window's key.
fn bound(mw_type: MwType, access: Access) -> (Node, Region, u32) {
    let mut node = node();
    let region = bindable(&mut node);
    let window = node.keys.insert_window(PD, mw_type).unwrap();
    let bind = bind(window, &region, access);
    assert_eq!(done(&mut node, SendOp::BindMw(bind)), WcStatus::Success);
    (node, region, key_of(&bind))
}

/// Whether an 8-byte WRITE of the peer is done; a refused one must be refused for the key.
#[track_caller]
fn writes(node: &mut Node, psn: u32, va: u64, key: u32) -> bool {
    let out = node.feed(&write(Only, psn, 8).reth(va, key, 8));
    if out[0].is_ack() {
        return true;
    }
    assert_eq!(out[0].nak(), Some(NakCode::RemoteAccess));
    assert_eq!(node.told.events, [EventType::QpAccessErr]);
    false
}

#[test]
fn a_window_is_open_to_its_range_with_its_rights() {
    let at = |offset: u64| 0x10_0000 + offset;
    for mw_type in [MwType::One, MwType::Two] {
        let (mut node, region, key) = bound(mw_type, Access::REMOTE_WRITE);
        assert!(writes(&mut node, FIRST_PSN, at(100), key));
        assert!(writes(&mut node, FIRST_PSN + 1, at(192), key));
        assert_eq!(region.get(99, 10), [vec![0], vec![0xa5; 8], vec![0]].concat());
        // Offset of the address, what is changed in the key, and whether the region's key is taken
        // instead.
        for (va, flip, own) in [
            (at(99), 0, false),
            (at(193), 0, false),
            (at(0), 0, false),
            (u64::MAX - 3, 0, false),
            (at(100), 1, false),
            (at(100), 0, true),
        ] {
            let (mut node, region, key) = bound(mw_type, Access::REMOTE_WRITE);
            let key = if own { region.key } else { key ^ flip };
            assert!(!writes(&mut node, FIRST_PSN, va, key), "{mw_type:?} {va:#x} {key:#x}");
        }
        let (mut node, _, key) = bound(mw_type, Access::REMOTE_WRITE);
        let out = node.feed(&read(FIRST_PSN, at(100), key, 8));
        assert_eq!(out[0].nak(), Some(NakCode::RemoteAccess), "it gives no other right");
        let (mut node, _, key) = bound(mw_type, Access::REMOTE_READ);
        assert!(!writes(&mut node, FIRST_PSN, at(100), key));
        let (mut node, _, key) = bound(mw_type, Access::REMOTE_READ | Access::REMOTE_ATOMIC);
        assert_eq!(node.feed(&read(FIRST_PSN, at(100), key, 100)).len(), 1);
        let out = node.feed(&fetch_add(FIRST_PSN + 1, at(104), key));
        assert_eq!(out[0].operation(), Operation::AtomicAcknowledge);
    }
}

#[test]
fn a_zero_based_window_counts_from_0() {
    let (mut node, region, key) = bound(MwType::Two, Access::REMOTE_WRITE | Access::ZERO_BASED);
    assert!(writes(&mut node, FIRST_PSN, 0, key));
    assert!(writes(&mut node, FIRST_PSN + 1, 92, key));
    assert_eq!((region.get(99, 2), region.get(199, 2)), (vec![0, 0xa5], vec![0xa5, 0]));
    assert!(!writes(&mut node, FIRST_PSN + 2, 93, key));
}

#[test]
pub fn a_window_of_type_2_is_open_to_one_qp() {
    let mut node = node();
    let region = bindable(&mut node);
    let [one, two] = [MwType::One, MwType::Two].map(|t| node.keys.insert_window(PD, t).unwrap());
    let [one, two] = [one, two].map(|window| bind(window, &region, Access::REMOTE_WRITE));
    let other = (PD, QPN + 1);
    node.keys.bind(other, &one).unwrap();
    node.keys.bind(other, &two).unwrap();
    assert!(writes(&mut node, FIRST_PSN, one.addr, key_of(&one)), "type 1 is open to the domain");
    assert_eq!(
        node.keys.invalidate((PD, QPN), key_of(&two)),
        Err(transport::keys::KeyError::NotBound)
    );
    assert!(!writes(&mut node, FIRST_PSN + 1, two.addr, key_of(&two)));
}

#[test]
fn a_window_of_another_domain_gives_no_access() {
    let mut node = node();
    let foreign = PdId(PD.0 + 1);
    let region = node.register_as(foreign, 1024, Access::LOCAL_WRITE | Access::MW_BIND);
    let window = node.keys.insert_window(foreign, MwType::One).unwrap();
    let bind = bind(window, &region, Access::REMOTE_WRITE);
    node.keys.bind((foreign, QPN), &bind).unwrap();
    assert!(!writes(&mut node, FIRST_PSN, bind.addr, key_of(&bind)));
}

#[test]
fn an_unbound_window_gives_no_access_and_has_no_local_key() {
    for mw_type in [MwType::One, MwType::Two] {
        let mut node = node();
        let key = node.keys.insert_window(PD, mw_type).unwrap();
        assert!(!writes(&mut node, FIRST_PSN, 0, key));
    }
    let (mut node, region, key) = bound(MwType::Two, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    node.post_send(send_wr(1, SendOp::Write(FAR), &[Sge { lkey: key, ..region.sge(100, 8) }]));
    assert_eq!(node.told.sent[1].status, WcStatus::LocProtErr);
}

#[test]
fn type_1_is_bound_anew_at_will_and_each_time_under_a_new_key() {
    let (mut node, region, first) = bound(MwType::One, Access::REMOTE_WRITE);
    let again = Bind { addr: region.iova + 300, ..bind(first, &region, Access::REMOTE_WRITE) };
    assert_eq!(done(&mut node, SendOp::BindMw(again)), WcStatus::Success);
    assert_ne!(key_of(&again), first);
    assert!(writes(&mut node, FIRST_PSN, region.iova + 300, key_of(&again)));
    assert!(matches!(node.keys.remove_unbound(region.key, || ()), Err(Error::Busy(_))));
    let nothing = Bind { len: 0, region: 0, ..bind(key_of(&again), &region, Access::empty()) };
    assert_eq!(done(&mut node, SendOp::BindMw(nothing)), WcStatus::Success);
    assert!(!writes(&mut node, FIRST_PSN + 1, region.iova + 300, key_of(&nothing)));
    assert_eq!(node.keys.remove_unbound(region.key, || ()), Ok(()), "no window is bound");
}

#[test]
fn type_2_is_invalidated_here_or_by_the_peer_and_then_free() {
    let (mut node, region, key) = bound(MwType::Two, Access::REMOTE_WRITE);
    assert_eq!(done(&mut node, SendOp::LocalInvalidate(key)), WcStatus::Success);
    let again = bind(key, &region, Access::REMOTE_WRITE);
    assert_eq!(done(&mut node, SendOp::BindMw(again)), WcStatus::Success);
    let key = key_of(&again);
    node.post_recv(1, &[]);
    assert!(node.feed(&send(Only, FIRST_PSN, 0).invalidate(key))[0].is_ack());
    let received = node.told.received[0];
    assert_eq!((received.flags, received.imm_or_key), (WcFlags::WITH_INV, key));
    assert!(!writes(&mut node, FIRST_PSN + 1, again.addr, key));
    assert_eq!(node.keys.remove_unbound(region.key, || ()), Ok(()));
}

#[test]
fn only_bound_windows_of_type_2_can_be_invalidated() {
    type Spoil = fn(&mut Node) -> u32;
    let cases: [(&str, Spoil); 5] = [
        ("a region", |node| bindable(node).key),
        ("nothing", |_| 0x4242),
        ("a free window", |node| node.keys.insert_window(PD, MwType::Two).unwrap()),
        ("a window of type 1", |node| {
            let region = bindable(node);
            let window = node.keys.insert_window(PD, MwType::One).unwrap();
            let bind = bind(window, &region, Access::REMOTE_READ);
            node.keys.bind((PD, QPN), &bind).unwrap();
            key_of(&bind)
        }),
        ("a window of another domain", |node| {
            let foreign = PdId(PD.0 + 1);
            let region = node.register_as(foreign, 1024, Access::LOCAL_WRITE | Access::MW_BIND);
            let window = node.keys.insert_window(foreign, MwType::Two).unwrap();
            let bind = bind(window, &region, Access::REMOTE_READ);
            node.keys.bind((foreign, QPN), &bind).unwrap();
            key_of(&bind)
        }),
    ];
    for (what, spoil) in cases {
        let mut here = node();
        let key = spoil(&mut here);
        assert_eq!(done(&mut here, SendOp::LocalInvalidate(key)), WcStatus::MwBindErr, "{what}");
        assert_eq!(here.qp.state(), QpState::Err);
        let mut there = node();
        let key = spoil(&mut there);
        there.post_recv(1, &[]);
        let out = there.feed(&send(Only, FIRST_PSN, 0).invalidate(key));
        assert_eq!(out[0].nak(), Some(NakCode::RemoteAccess), "{what}");
    }
}

#[test]
pub fn a_wrong_bind_fails_and_changes_nothing() {
    type Spoil = fn(&mut Node, &mut Bind);
    const READS: Access = Access::REMOTE_READ;
    let cases: [(&str, MwType, Spoil); 16] = [
        ("no such window", MwType::Two, |_, bind| bind.window = 0xffff_ff00),
        ("a region for a window", MwType::Two, |_, bind| bind.window = bind.region),
        ("a window of another domain", MwType::Two, |node, bind| {
            bind.window = node.keys.insert_window(PdId(PD.0 + 1), MwType::Two).unwrap();
        }),
        ("bound already", MwType::Two, |node, bind| node.keys.bind((PD, QPN), bind).unwrap()),
        ("type 2 to nothing", MwType::Two, |_, bind| bind.len = 0),
        ("zero-based type 1", MwType::One, |_, bind| bind.access |= Access::ZERO_BASED.bits()),
        ("a right of regions", MwType::Two, |_, bind| bind.access |= Access::MW_BIND.bits()),
        ("an unknown right", MwType::Two, |_, bind| bind.access |= 1 << 30),
        ("no such region", MwType::Two, |_, bind| bind.region ^= 0x10_0000),
        ("a stale region", MwType::Two, |_, bind| bind.region ^= 1),
        ("a window for a region", MwType::Two, |_, bind| bind.region = bind.window),
        ("a region of another domain", MwType::Two, |node, bind| {
            let access = Access::LOCAL_WRITE | Access::MW_BIND;
            bind.region = node.register_as(PdId(PD.0 + 1), 1024, access).key;
        }),
        ("a region without the bind right", MwType::Two, |node, bind| {
            bind.region = node.register(1024).key;
        }),
        ("writes to a region for reading", MwType::One, |node, bind| {
            bind.region = node.register_as(PD, 1024, Access::MW_BIND).key;
            bind.access = Access::REMOTE_ATOMIC.bits();
        }),
        ("one byte over the end", MwType::One, |_, bind| bind.len = 925),
        ("a range that wraps", MwType::One, |_, bind| bind.len = u64::MAX),
    ];
    for (what, mw_type, spoil) in cases {
        let mut node = node();
        let region = bindable(&mut node);
        let window = node.keys.insert_window(PD, mw_type).unwrap();
        let mut wrong = bind(window, &region, READS);
        spoil(&mut node, &mut wrong);
        assert_eq!(done(&mut node, SendOp::BindMw(wrong)), WcStatus::MwBindErr, "{what}");
        assert_ne!(node.told.sent[0].vendor_err, 0, "{what}");
        assert_eq!(node.qp.state(), QpState::Err);
        if what != "bound already" {
            assert_eq!(node.keys.remove_unbound(region.key, || ()), Ok(()), "{what}");
        }
    }
    let mut node = node();
    let access = Access::LOCAL_WRITE | Access::MW_BIND | Access::ZERO_BASED;
    let region = node.register_as(PD, 1024, access);
    let window = node.keys.insert_window(PD, MwType::Two).unwrap();
    let status = done(&mut node, SendOp::BindMw(bind(window, &region, READS)));
    assert_eq!(status, WcStatus::MwBindErr, "a zero-based region");
}

#[test]
fn a_bind_waits_for_what_is_before_it_and_holds_up_what_is_behind() {
    let mut node = node();
    let region = bindable(&mut node);
    let window = node.keys.insert_window(PD, MwType::Two).unwrap();
    let bind = bind(window, &region, Access::REMOTE_WRITE);
    node.post_send(send_wr(1, SendOp::Write(FAR), &[region.sge(0, 8)]));
    node.post_send(send_wr(2, SendOp::BindMw(bind), &[]));
    node.post_send(send_wr(3, SendOp::Send, &[region.sge(0, 8)]));
    node.post_send(send_wr(4, SendOp::LocalInvalidate(key_of(&bind)), &[]));
    assert_eq!(node.emitted().len(), 1, "the SEND may tell the peer of the key");
    assert_eq!(
        node.keys.invalidate((PD, QPN), key_of(&bind)),
        Err(transport::keys::KeyError::Unknown)
    );
    let out: Vec<Packet> = node.feed(&ack(SQ_PSN));
    assert_eq!((out.len(), out[0].psn()), (1, SQ_PSN + 1));
    assert!(
        writes(&mut node, FIRST_PSN, bind.addr, key_of(&bind)),
        "bound before the SEND is answered"
    );
    node.feed(&ack(SQ_PSN + 1));
    assert_eq!(node.told.sent.iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(!writes(&mut node, FIRST_PSN + 1, bind.addr, key_of(&bind)));
}

#[test]
fn unreliable_connections_bind_too_and_datagrams_do_not() {
    let mut node = node_of(QpType::Uc);
    let region = bindable(&mut node);
    let window = node.keys.insert_window(PD, MwType::Two).unwrap();
    let bind = bind(window, &region, Access::REMOTE_WRITE);
    assert_eq!(done(&mut node, SendOp::BindMw(bind)), WcStatus::Success);
    assert_eq!(done(&mut node, SendOp::BindMw(bind)), WcStatus::MwBindErr);
    assert_eq!(node.qp.state(), QpState::Sqe);
    let mut node = node_of(QpType::Ud);
    let refused = node.qp.post_send(send_wr(1, SendOp::BindMw(bind), &[]));
    assert!(matches!(refused, Err(Error::Invalid(_))));
}

#[test]
fn a_region_with_windows_stays_and_its_forced_end_takes_them_along() {
    let (mut node, region, key) = bound(MwType::Two, Access::REMOTE_WRITE);
    let mkey = node.keys.get(region.key).unwrap();
    assert!(matches!(node.keys.replace(region.key, mkey), Err(Error::Busy(_))));
    assert!(matches!(node.keys.remove_unbound(region.key, || ()), Err(Error::Busy(_))));
    assert!(writes(&mut node, FIRST_PSN, region.iova + 100, key), "the attempts changed nothing");
    node.keys.remove(region.key, || ()).unwrap();
    assert!(!writes(&mut node, FIRST_PSN + 1, region.iova + 100, key));
    let (mut node, region, key) = bound(MwType::Two, Access::REMOTE_WRITE);
    node.keys.remove_window(key).unwrap();
    assert!(!writes(&mut node, FIRST_PSN, region.iova + 100, key));
    assert_eq!(node.keys.remove_unbound(region.key, || ()), Ok(()));
}

/// One side binds a window and names its key; the other writes through it and invalidates it: fifty
/// times over a network with every fault, each key good exactly once.
#[test]
fn a_window_for_every_message_over_a_bad_network() {
    for seed in 0..12 {
        let faults = Faults::sweep(seed);
        println!("seed {seed}, {faults:?}");
        let mut pair =
            Pair::new(&Setup { timeout: 8, ..Setup::new(QpType::Rc) }, 64 << 10, seed, faults);
        let region = bindable(&mut pair.nodes[0]);
        let source = pair.nodes[1].register(1024);
        let mut window = pair.nodes[0].keys.insert_window(PD, MwType::Two).unwrap();
        for round in 0..50u8 {
            let bind = bind(window, &region, Access::REMOTE_WRITE);
            window = key_of(&bind);
            source.set(0, &[round; 100]);
            pair.nodes[1].post_recv(u64::from(round), &[]);
            pair.nodes[0].post_recv(u64::from(round), &[]);
            pair.nodes[0].post_send(send_wr(0, SendOp::BindMw(bind), &[]));
            pair.nodes[0].post_send(send_wr(1, SendOp::SendImm(window), &[]));
            let told = usize::from(round) + 1;
            let limit = std::time::Duration::from_secs(60);
            pair.run_until(limit, |pair| pair.nodes[1].told.received.len() == told);
            let rkey = pair.nodes[1].told.received[told - 1].imm_or_key;
            let remote = Remote { addr: region.iova + 100, rkey };
            pair.nodes[1].post_send(send_wr(2, SendOp::Write(remote), &[source.sge(0, 100)]));
            pair.nodes[1].post_send(send_wr(3, SendOp::SendInvalidate(rkey), &[]));
            pair.run_until(limit, |pair| pair.nodes[0].told.received.len() == told);
            assert_eq!(region.get(100, 100), [round; 100]);
            let who = (PD, QPN);
            assert_eq!(
                pair.nodes[0].keys.invalidate(who, rkey),
                Err(transport::keys::KeyError::NotBound)
            );
        }
        let limit = std::time::Duration::from_secs(60);
        pair.run_until(limit, |pair| pair.nodes.iter().all(|node| node.told.sent.len() == 100));
        pair.assert_corrupted();
        assert!(pair.nodes.iter().all(|node| node.qp.state() == QpState::Rts));
    }
}
