//! Indirect memory keys: laid out and invalidated by send requests in order, and every access
//! checked against what is below.

use crate::support::{Faults, Node, PD, Pair, Region, Setup, send_wr};
use std::sync::Arc;
use transport::keys::KeyError;
use transport::values::*;

const QPN: u32 = 11;
const OTHER: PdId = PdId(PD.0 + 1);

fn node() -> Node {
    let mut node = Node::new(QpType::Rc, QPN, None);
    node.connect(&Setup::new(QpType::Rc));
    node
}

fn configure(key: u32, access: Access, layout: KeyLayout) -> SendOp {
    let config = KeyConfig {
        key,
        access: Some(access.bits()),
        layout: Some(layout),
        signature: SignatureChange::Keep,
    };
    SendOp::ConfigureKey(Arc::new(config))
}

fn room(max_entries: u16) -> IndirectInit {
    IndirectInit { max_entries, ..IndirectInit::default() }
}

/// Posts `op` and gives how it completed.
#[track_caller]
fn done(node: &mut Node, op: SendOp) -> WcStatus {
    let before = node.told.sent.len();
    node.post_send(send_wr(70, op, &[]));
    assert_eq!(node.told.sent.len(), before + 1, "a local operation completes at once");
    node.told.sent[before].status
}

/// Bytes 0 to 4, 100 to 108 and 50 to 52 of a region.
fn three_parts(region: &Region) -> KeyLayout {
    KeyLayout::List(vec![region.sge(0, 4), region.sge(100, 8), region.sge(50, 2)])
}

fn rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// A node with 256 bytes that say their offsets, and a key over three parts of them.
fn laid_out() -> (Node, Region, u32) {
    let mut node = node();
    let region = node.register_as(PD, 256, Access::LOCAL_WRITE);
    region.set(0, &(0..=255).collect::<Vec<u8>>());
    let key = node.keys.insert_indirect(PD, room(4)).unwrap();
    assert_eq!(done(&mut node, configure(key, rights(), three_parts(&region))), WcStatus::Success);
    assert_eq!(node.told.sent[0].opcode, WcOpcode::ConfigureKey);
    (node, region, key)
}

fn read(node: &Node, key: u32, va: u64, len: usize) -> std::result::Result<Vec<u8>, KeyError> {
    let memory = node.keys.resolve_remote((PD, QPN), key, va, len as u64, Access::REMOTE_READ)?;
    let mut bytes = vec![0; len];
    memory.read(0, &mut bytes).unwrap();
    Ok(bytes)
}

#[test]
fn a_list_is_one_part_after_the_other() {
    let (node, region, key) = laid_out();
    let all = [0, 1, 2, 3, 100, 101, 102, 103, 104, 105, 106, 107, 50, 51];
    for from in 0..=all.len() {
        for to in from..=all.len() {
            assert_eq!(read(&node, key, from as u64, to - from).unwrap(), all[from..to]);
        }
    }
    assert_eq!(read(&node, key, 0, 15), Err(KeyError::Range));
    assert_eq!(read(&node, key, 14, 1), Err(KeyError::Range));
    assert_eq!(read(&node, key, u64::MAX, 2), Err(KeyError::Range));
    let memory = node.keys.resolve(PD, key, 2, 11, Access::LOCAL_WRITE).unwrap();
    memory.write(1, &[200; 10]).unwrap();
    assert_eq!(region.get(2, 3), [2, 200, 4]);
    assert_eq!(region.get(99, 10), [99, 200, 200, 200, 200, 200, 200, 200, 200, 108]);
    assert_eq!(region.get(50, 2), [200, 51]);
    assert!(memory.write(2, &[0; 10]).is_err());
}

#[test]
fn strides_take_turns() {
    let (mut node, region, key) = laid_out();
    let stride =
        |addr, bytes, skip| Stride { addr: region.iova + addr, bytes, skip, lkey: region.key };
    let strides = vec![stride(0, 2, 3), stride(100, 1, 0)];
    let layout = KeyLayout::Interleaved { repeat: 3, strides };
    assert_eq!(done(&mut node, configure(key, rights(), layout)), WcStatus::Success);
    let all = [0, 1, 100, 5, 6, 101, 10, 11, 102];
    for from in 0..=all.len() {
        assert_eq!(read(&node, key, from as u64, all.len() - from).unwrap(), all[from..]);
    }
    assert_eq!(read(&node, key, 0, 10), Err(KeyError::Range));
    // Nothing, however often, and far more than there is.
    let strides = vec![stride(0, 0, 0)];
    let layout = KeyLayout::Interleaved { repeat: u32::MAX, strides };
    assert_eq!(done(&mut node, configure(key, rights(), layout)), WcStatus::Success);
    assert_eq!(read(&node, key, 0, 1), Err(KeyError::Range));
    let layout = KeyLayout::Interleaved { repeat: u32::MAX, strides: vec![stride(0, 1, u32::MAX)] };
    assert_eq!(done(&mut node, configure(key, rights(), layout)), WcStatus::Success);
    assert_eq!(read(&node, key, 0, 2), Err(KeyError::Range));
    assert_eq!(read(&node, key, u64::from(u32::MAX) - 1, 2), Err(KeyError::Range));
}

#[test]
fn what_lies_below_is_checked_at_each_access() {
    let (mut node, region, key) = laid_out();
    assert_eq!(read(&node, key, 0, 14).unwrap().len(), 14);
    let beyond = KeyLayout::List(vec![region.sge(0, 4), region.sge(250, 8)]);
    assert_eq!(done(&mut node, configure(key, rights(), beyond)), WcStatus::Success);
    assert_eq!(read(&node, key, 0, 4).unwrap(), [0, 1, 2, 3]);
    assert_eq!(read(&node, key, 0, 11), Err(KeyError::Range));
    let (foreign, readable) =
        (node.register_as(OTHER, 8, rights()), node.register_as(PD, 8, Access::empty()));
    let parts = KeyLayout::List(vec![readable.sge(0, 4), foreign.sge(0, 4)]);
    assert_eq!(done(&mut node, configure(key, rights(), parts)), WcStatus::Success);
    assert_eq!(read(&node, key, 0, 4).unwrap(), [0; 4]);
    assert_eq!(read(&node, key, 0, 5), Err(KeyError::ForeignPd));
    let write = |node: &Node| {
        node.keys.resolve_remote((PD, QPN), key, 0, 1, Access::REMOTE_WRITE).map(drop)
    };
    assert_eq!(write(&node), Err(KeyError::Denied));
    node.keys.remove(readable.key, || ()).unwrap();
    assert_eq!(read(&node, key, 0, 1), Err(KeyError::Unknown));
    // A key over itself, and over a window.
    let itself = KeyLayout::List(vec![Sge { addr: 0, length: 4, lkey: key }]);
    assert_eq!(done(&mut node, configure(key, rights(), itself)), WcStatus::Success);
    assert_eq!(read(&node, key, 0, 1), Err(KeyError::Denied));
    let window = node.keys.insert_window(PD, MwType::One).unwrap();
    let over = KeyLayout::List(vec![Sge { addr: 0, length: 4, lkey: window }]);
    assert_eq!(done(&mut node, configure(key, rights(), over)), WcStatus::Success);
    assert_eq!(read(&node, key, 0, 1), Err(KeyError::Unknown));
}

#[test]
fn rights_are_the_keys_own() {
    let (mut node, region, key) = laid_out();
    let layout = three_parts(&region);
    assert_eq!(done(&mut node, configure(key, Access::LOCAL_WRITE, layout)), WcStatus::Success);
    assert_eq!(read(&node, key, 0, 1), Err(KeyError::Denied));
    assert!(node.keys.resolve(PD, key, 0, 1, Access::LOCAL_WRITE).is_ok());
    let resolved = node.keys.resolve(OTHER, key, 0, 1, Access::empty());
    assert_eq!(resolved.map(drop), Err(KeyError::ForeignPd));
    // A word in two places cannot change at once; one in one can.
    let parts = KeyLayout::List(vec![region.sge(0, 4), region.sge(104, 12)]);
    assert_eq!(done(&mut node, configure(key, rights(), parts)), WcStatus::Success);
    let word = |va| {
        let memory = node.keys.resolve_remote((PD, QPN), key, va, 8, Access::REMOTE_ATOMIC);
        memory.unwrap().atomic(umem::AtomicOp::FetchAdd { add: 1 })
    };
    assert!(word(0).is_err());
    let before = region.word(104);
    assert_eq!(word(4), Ok(before));
    assert_eq!(region.word(104), before.wrapping_add(1));
}

#[test]
fn wrong_requests_change_nothing_and_end_the_queue() {
    type Wrong = fn(&Node, u32, &Region) -> SendOp;
    let wrong: [(&str, Wrong); 5] = [
        ("too many entries", |_, key, region| {
            configure(key, rights(), KeyLayout::List(vec![region.sge(0, 1); 5]))
        }),
        ("remote write without local write", |_, key, region| {
            configure(key, Access::REMOTE_WRITE, three_parts(region))
        }),
        ("a region", |_, _, region| configure(region.key, rights(), three_parts(region))),
        ("a wrong tag", |_, key, region| configure(key ^ 1, rights(), three_parts(region))),
        ("a key of another domain", |node, _, region| {
            let foreign = node.keys.insert_indirect(OTHER, room(4)).unwrap();
            configure(foreign, rights(), three_parts(region))
        }),
    ];
    for (what, wrong) in wrong {
        let (mut node, region, key) = laid_out();
        let op = wrong(&node, key, &region);
        assert_eq!(done(&mut node, op), WcStatus::MwBindErr, "{what}");
        assert_eq!(node.qp.state(), QpState::Err, "{what}");
        assert_eq!(read(&node, key, 0, 4).unwrap(), [0, 1, 2, 3], "{what}");
    }
}

#[test]
fn an_invalidated_key_is_free_until_it_is_laid_out_again() {
    let (mut node, region, key) = laid_out();
    assert_eq!(done(&mut node, SendOp::LocalInvalidate(key)), WcStatus::Success);
    assert_eq!(read(&node, key, 0, 1), Err(KeyError::NotBound));
    assert_eq!(done(&mut node, configure(key, rights(), three_parts(&region))), WcStatus::Success);
    assert_eq!(read(&node, key, 0, 1).unwrap(), [0]);
    // By the peer only if the key was made for that.
    assert_eq!(node.keys.invalidate_by_peer((PD, QPN), key), Err(KeyError::Denied));
    let open =
        node.keys.insert_indirect(PD, IndirectInit { remote_invalidate: true, ..room(4) }).unwrap();
    assert_eq!(node.keys.invalidate_by_peer((OTHER, QPN), open), Err(KeyError::ForeignPd));
    assert_eq!(node.keys.invalidate_by_peer((PD, QPN), open), Ok(()));
    node.keys.remove_indirect(key);
    assert_eq!(read(&node, key, 0, 1), Err(KeyError::Unknown));
}

#[test]
fn messages_gather_and_scatter_by_keys_over_a_bad_network() {
    for seed in 0..4 {
        let faults = Faults { loss: 15, duplicate: 15, reorder: 0, ..Faults::NONE };
        let setup = Setup { timeout: 8, ..Setup::new(QpType::Rc) };
        let mut pair = Pair::new(&setup, 64 << 10, seed, faults);
        let regions = [0, 1].map(|side: usize| pair.nodes[side].register(16 << 10));
        regions[1].set(0, &(0..16 << 10).map(|at| (at / 7) as u8).collect::<Vec<u8>>());
        let keys = [0, 1].map(|side: usize| {
            let key = pair.nodes[side].keys.insert_indirect(PD, room(2)).unwrap();
            let stride = |addr, bytes, skip| {
                let region = &regions[side];
                Stride { addr: region.iova + addr, bytes, skip, lkey: region.key }
            };
            let strides = vec![stride(0, 100, 28), stride(8192, 28, 100)];
            let layout = KeyLayout::Interleaved { repeat: 50, strides };
            pair.nodes[side].post_send(send_wr(0, configure(key, rights(), layout), &[]));
            key
        });
        let own = Sge { addr: 0, length: 6400, lkey: keys[1] };
        let far = Remote { addr: 0, rkey: keys[0] };
        pair.nodes[1].post_send(send_wr(1, SendOp::Write(far), &[own]));
        let limit = std::time::Duration::from_secs(60);
        pair.run_until(limit, |pair| pair.nodes[1].told.sent.len() == 2);
        for turn in 0..50 {
            let at = turn * 128;
            assert_eq!(regions[0].get(at, 100), regions[1].get(at, 100));
            assert_eq!(regions[0].get(at + 100, 28), [0; 28]);
            assert_eq!(regions[0].get(8192 + at, 28), regions[1].get(8192 + at, 28));
            assert_eq!(regions[0].get(8192 + at + 28, 100), [0; 100]);
        }
    }
}
