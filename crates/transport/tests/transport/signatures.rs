//! Keys with block signatures: what passes on the wire and what lies in memory against an image of each made here, what a
//! check finds, and queue pairs that stop at it.

use crate::support::{Faults, Node, PD, Pair, Region, Rng, Setup, send_wr};
use std::sync::Arc;
use std::time::Duration;
use transport::keys::KeyError;
use transport::signature::*;
use transport::values::*;

const QPN: u32 = 11;
const SIGNED: IndirectInit =
    IndirectInit { max_entries: 4, remote_invalidate: false, signatures: true };

fn rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

fn crc(guard: GuardKind, block: u32) -> SignatureDomain {
    SignatureDomain { block, signature: Signature::Crc { guard, seeded: true } }
}

fn tags() -> T10Dif {
    T10Dif {
        guard: GuardKind::T10Crc,
        seeded: false,
        app_tag: 0xabcd,
        ref_tag: 0x0123_4567,
        increments: true,
        escape: Escape::Never,
    }
}

fn dif_of(block: u32, change: impl FnOnce(&mut T10Dif)) -> SignatureDomain {
    let mut tags = tags();
    change(&mut tags);
    SignatureDomain { block, signature: Signature::T10Dif(tags) }
}

fn dif(block: u32) -> SignatureDomain {
    dif_of(block, |_| ())
}

/// `data` with the fields of a domain behind its complete blocks.
fn image(data: &[u8], domain: &Option<SignatureDomain>) -> Vec<u8> {
    let Some(domain) = domain else { return data.to_vec() };
    let mut image = Vec::new();
    for (index, block) in data.chunks(domain.block as usize).enumerate() {
        image.extend(block);
        if block.len() < domain.block as usize {
            break;
        }
        match domain.signature {
            Signature::T10Dif(tags) => {
                let sum = guard(tags.guard, tags.seeded, block);
                image.extend([(sum >> 8) as u8, sum as u8]);
                image.extend([(tags.app_tag >> 8) as u8, tags.app_tag as u8]);
                let step = if tags.increments { index as u32 } else { 0 };
                image.extend(tags.ref_tag.wrapping_add(step).to_be_bytes());
            }
            Signature::Crc { guard: kind, seeded } => {
                let sum = guard(kind, seeded, block).to_le_bytes();
                image.extend(&sum[..if kind == GuardKind::Crc64Xp10 { 8 } else { 4 }]);
            }
        }
    }
    image
}

fn set(key: u32, layout: KeyLayout, signature: SignatureChange) -> SendOp {
    let access = Some(rights().bits());
    SendOp::ConfigureKey(Arc::new(KeyConfig { key, access, layout: Some(layout), signature }))
}

fn change(signature: BlockSignature) -> SignatureChange {
    SignatureChange::Set(Arc::new(signature))
}

/// A key over the first `len` bytes of a region, in two parts that meet amid a block.
fn signed(node: &mut Node, region: &Region, len: usize, signature: BlockSignature) -> u32 {
    let key = node.keys.insert_indirect(PD, SIGNED).unwrap();
    let first = (len / 2 + 1).min(len) as u32;
    let parts = vec![region.sge(0, first), region.sge(first.into(), len as u32 - first)];
    let op = set(key, KeyLayout::List(parts), change(signature));
    node.post_send(send_wr(0, op, &[]));
    assert_eq!(node.told.sent.pop().unwrap().status, WcStatus::Success);
    key
}

fn node() -> Node {
    let mut node = Node::new(QpType::Rc, QPN, None);
    node.connect(&Setup::new(QpType::Rc));
    node
}

/// Domains of all kinds and sizes, in memory and on the wire.
fn combinations() -> Vec<(Option<SignatureDomain>, Option<SignatureDomain>)> {
    let kinds = [GuardKind::Crc32, GuardKind::Crc32c, GuardKind::Crc64Xp10];
    let mut domains = vec![None, Some(dif(512)), Some(dif(520))];
    domains.push(Some(dif_of(512, |tags| tags.guard = GuardKind::IpChecksum)));
    domains.push(Some(dif_of(512, |tags| {
        (tags.seeded, tags.app_tag, tags.ref_tag) = (true, 7, 9);
        tags.increments = false;
    })));
    domains.extend(kinds.map(|kind| Some(crc(kind, 512))));
    domains.extend([4048, 4096, 4160].map(|block| Some(dif(block))));
    let seedless = Signature::Crc { guard: GuardKind::Crc32c, seeded: false };
    domains.push(Some(SignatureDomain { block: 520, signature: seedless }));
    let all = domains.iter().flat_map(|memory| domains.iter().map(|wire| (*memory, *wire)));
    all.filter(|(memory, wire)| memory.is_some() || wire.is_some()).collect()
}

fn read(node: &Node, key: u32, va: usize, len: usize) -> std::result::Result<Vec<u8>, KeyError> {
    let (va, size) = (va as u64, len as u64);
    let memory = node.keys.resolve_remote((PD, QPN), key, va, size, Access::REMOTE_READ)?;
    let mut bytes = vec![0; len];
    memory.read(0, &mut bytes).unwrap();
    Ok(bytes)
}

fn write(node: &Node, key: u32, va: usize, bytes: &[u8]) {
    let (va, len) = (va as u64, bytes.len() as u64);
    let memory = node.keys.resolve_remote((PD, QPN), key, va, len, Access::REMOTE_WRITE);
    memory.unwrap().write(0, bytes).unwrap();
}

/// `whole` cut at random places, each piece with where it begins.
fn pieces<'a>(rng: &mut Rng, whole: &'a [u8], most: u64) -> Vec<(usize, &'a [u8])> {
    let (mut at, mut pieces) = (0, Vec::new());
    while at < whole.len() {
        let end = (at + rng.range(1, most) as usize).min(whole.len());
        pieces.push((at, &whole[at..end]));
        at = end;
    }
    pieces
}

#[test]
fn what_passes_is_generated_inserted_and_stripped() {
    let mut rng = Rng(7);
    for (memory, wire) in combinations() {
        let data = rng.bytes(9000);
        let (lies, passes) = (image(&data, &memory), image(&data, &wire));
        let mut node = node();
        let region = node.register(lies.len() as u64);
        let rules = BlockSignature::new(memory, wire, 0xff, None).unwrap();
        let what = format!("{memory:?} to {wire:?}");
        let key = signed(&mut node, &region, lies.len(), rules);
        region.set(0, &lies);
        for (at, piece) in pieces(&mut rng, &passes, 1500) {
            assert_eq!(read(&node, key, at, piece.len()).unwrap(), piece, "{what} at {at}");
        }
        assert_eq!(read(&node, key, 0, passes.len() + 1), Err(KeyError::Range));
        assert_eq!(read(&node, key, passes.len(), 1), Err(KeyError::Range));
        region.set(0, &vec![0; lies.len()]);
        for (at, piece) in pieces(&mut rng, &passes, 1500) {
            write(&node, key, at, piece);
        }
        assert!(region.get(0, lies.len()) == lies, "{what}");
        assert_eq!(node.keys.signature_error(key), Ok(None), "{what}");
    }
}

/// Where a block begins that has data byte `at`, in a domain.
fn block_of(domain: &SignatureDomain, at: usize) -> u64 {
    let index = (at / domain.block as usize) as u64;
    let dif = matches!(domain.signature, Signature::T10Dif(_));
    let long = matches!(domain.signature, Signature::Crc { guard: GuardKind::Crc64Xp10, .. });
    index * (u64::from(domain.block) + if dif || long { 8 } else { 4 })
}

pub fn a_flipped_bit_is_found_in_its_block() {
    let mut rng = Rng(8);
    for (memory, wire) in combinations() {
        let data = rng.bytes(9000);
        let (lies, passes) = (image(&data, &memory), image(&data, &wire));
        let mut node = node();
        let region = node.register(lies.len() as u64);
        let rules = BlockSignature::new(memory, wire, 0xff, None).unwrap();
        let key = signed(&mut node, &region, lies.len(), rules);
        let what = format!("{memory:?} to {wire:?}");
        // Of the first byte, and of one amid the second block.
        for at in [0usize, 4200] {
            let mut wrong = data.clone();
            wrong[at] ^= 0x10;
            for (reads, domain) in [(true, memory), (false, wire)] {
                let Some(domain) = domain else { continue };
                let mut bad = image(&data, &Some(domain));
                // The data as it is not, the fields as they were.
                let place = at + block_of(&domain, at) as usize
                    - at / domain.block as usize * domain.block as usize;
                bad[place] ^= 0x10;
                if reads {
                    region.set(0, &bad);
                    for (at, piece) in pieces(&mut rng, &passes, 900) {
                        read(&node, key, at, piece.len()).unwrap();
                    }
                } else {
                    for (at, piece) in pieces(&mut rng, &bad, 900) {
                        write(&node, key, at, piece);
                    }
                }
                let error = node.keys.signature_error(key).unwrap();
                let error = error.unwrap_or_else(|| panic!("{what}: byte {at} is not missed"));
                assert_eq!(error.fault, SignatureFault::Guard, "{what}");
                assert_eq!(error.offset, block_of(&domain, at), "{what}");
                assert_ne!(error.actual, error.expected, "{what}");
                assert_eq!(node.keys.signature_error(key), Ok(None), "it is told once");
            }
        }
    }
}

#[test]
fn flipped_bits_are_found() {
    a_flipped_bit_is_found_in_its_block();
}

#[test]
fn tags_are_told_with_what_they_should_be() {
    let mut node = node();
    let region = node.register(1040);
    let rules = BlockSignature::new(None, Some(dif(512)), 0xff, None).unwrap();
    let key = signed(&mut node, &region, 1024, rules);
    let right = image(&[5; 1024], &Some(dif(512)));
    let error = |fault, actual, expected| SignatureError { fault, actual, expected, offset: 520 };
    for (byte, expected) in [
        (520 + 514, error(SignatureFault::AppTag, 0xabcd, 0xaacd)),
        (520 + 519, error(SignatureFault::RefTag, 0x0123_4568, 0x0123_4569)),
    ] {
        let mut wrong = right.clone();
        wrong[byte] ^= 1;
        write(&node, key, 0, &wrong);
        assert_eq!(node.keys.signature_error(key), Ok(Some(expected)));
    }
    // The data is there although its field was wrong.
    assert_eq!(region.get(0, 1024), [5; 1024]);
}

#[test]
fn what_is_copied_and_checked_the_masks_say() {
    let data = [9; 1024];
    let own = dif_of(512, |tags| (tags.app_tag, tags.ref_tag) = (1, 2));
    let mut lies = image(&data, &Some(dif(512)));
    // Wrong in all parts.
    lies[512..520].iter_mut().for_each(|byte| *byte ^= 0xff);
    for (copy, check, passes) in [
        (Some(0xff), 0, lies[512..520].to_vec()),
        (Some(0), 0, image(&data, &Some(own))[512..520].to_vec()),
        (Some(0x30), 0, {
            let mut field = image(&data, &Some(own))[512..520].to_vec();
            field[2..4].copy_from_slice(&lies[514..516]);
            field
        }),
        (Some(0xff), 0xff, lies[512..520].to_vec()),
    ] {
        let mut node = node();
        let region = node.register(1040);
        let rules = BlockSignature::new(Some(dif(512)), Some(own), check, copy).unwrap();
        let key = signed(&mut node, &region, 1040, rules);
        region.set(0, &lies);
        assert_eq!(read(&node, key, 0, 520).unwrap()[512..], passes, "{copy:?}");
        let found = node.keys.signature_error(key).unwrap();
        assert_eq!(found.is_some(), check != 0, "{copy:?} {check:#x}");
    }
    // Two that nobody says how to copy: the guard is common to both, the tags are the output's.
    let mut node = node();
    let region = node.register(1040);
    let rules = BlockSignature::new(Some(dif(512)), Some(own), 0, None).unwrap();
    let key = signed(&mut node, &region, 1040, rules);
    write(&node, key, 0, &lies[..520]);
    let field = region.get(512, 8);
    assert_eq!(field[..2], lies[512..514]);
    assert_eq!(field[2..], image(&data, &Some(dif(512)))[514..520]);
}

#[test]
fn escaped_blocks_are_not_checked() {
    for (escape, app_alone, both) in [
        (Escape::Never, true, true),
        (Escape::AppTag, false, false),
        (Escape::AppAndRefTag, true, false),
    ] {
        let mut node = node();
        let region = node.register(1040);
        let wire = dif_of(512, |tags| tags.escape = escape);
        let rules = BlockSignature::new(None, Some(wire), 0xff, None).unwrap();
        let key = signed(&mut node, &region, 1024, rules);
        for (ref_tag, wrong) in [([0, 0, 0, 1], app_alone), ([0xff; 4], both)] {
            let mut bytes = vec![3; 520];
            bytes[514..516].copy_from_slice(&[0xff; 2]);
            bytes[516..].copy_from_slice(&ref_tag);
            write(&node, key, 0, &bytes);
            let found = node.keys.signature_error(key).unwrap();
            assert_eq!(found.is_some(), wrong, "{escape:?} {ref_tag:?}");
        }
    }
}

#[test]
fn signatures_stay_until_they_are_reset_or_the_key_is_free() {
    let mut node = node();
    let region = node.register(4096);
    let rules = BlockSignature::new(None, Some(dif(512)), 0xff, None).unwrap();
    let key = signed(&mut node, &region, 512, rules.clone());
    let layout = || KeyLayout::List(vec![region.sge(0, 512)]);
    let mut done = |op| {
        node.post_send(send_wr(0, op, &[]));
        let status = node.told.sent.pop().unwrap().status;
        (status, read(&node, key, 0, 520).is_ok(), read(&node, key, 0, 512).is_ok())
    };
    let ok = WcStatus::Success;
    assert_eq!(done(set(key, layout(), SignatureChange::Keep)), (ok, true, true));
    assert_eq!(done(set(key, layout(), SignatureChange::Reset)), (ok, false, true));
    assert_eq!(done(set(key, layout(), change(rules.clone()))), (ok, true, true));
    assert_eq!(done(SendOp::LocalInvalidate(key)), (ok, false, false));
    assert_eq!(done(set(key, layout(), SignatureChange::Keep)), (ok, false, true));
    assert_eq!(done(set(key, layout(), change(rules))), (ok, true, true));
    // An atomic has no word there.
    let memory = node.keys.resolve_remote((PD, QPN), key, 0, 8, Access::REMOTE_ATOMIC).unwrap();
    assert!(memory.atomic(umem::AtomicOp::FetchAdd { add: 1 }).is_err());
    // Nor have the fields a place in a key above, or at addresses that no memory has.
    let above = node.keys.insert_indirect(PD, SIGNED).unwrap();
    let over = KeyLayout::List(vec![Sge { addr: 0, length: 64, lkey: key }]);
    node.post_send(send_wr(0, set(above, over, SignatureChange::Keep), &[]));
    assert_eq!(read(&node, above, 0, 64), Err(KeyError::Denied));
    assert_eq!(read(&node, key, usize::MAX, 2), Err(KeyError::Range));
    assert_eq!(read(&node, key, usize::MAX - 1, 1), Err(KeyError::Range));
}

#[test]
fn keys_that_cannot_have_signatures_are_refused() {
    let rules = BlockSignature::new(None, Some(dif(512)), 0xff, None).unwrap();
    let long = |region: &Region| {
        let stride = Stride { addr: region.iova, bytes: 4096, skip: 0, lkey: region.key };
        KeyLayout::Interleaved { repeat: 1 << 20, strides: vec![stride] }
    };
    let short = |region: &Region| KeyLayout::List(vec![region.sge(0, 512)]);
    type Layout<'a> = &'a dyn Fn(&Region) -> KeyLayout;
    let unsigned = IndirectInit { signatures: false, ..SIGNED };
    let cases: [(IndirectInit, Layout<'_>); 2] = [(unsigned, &short), (SIGNED, &long)];
    for (init, layout) in cases {
        let mut node = node();
        let region = node.register(4096);
        let key = node.keys.insert_indirect(PD, init).unwrap();
        assert_eq!(node.keys.signature_error(key).is_ok(), init.signatures);
        node.post_send(send_wr(1, set(key, layout(&region), change(rules.clone())), &[]));
        assert_eq!(node.told.sent[0].status, WcStatus::MwBindErr);
    }
    // Nor can a key that has them grow so long.
    let mut node = node();
    let region = node.register(4096);
    let key = signed(&mut node, &region, 512, rules);
    node.post_send(send_wr(1, set(key, long(&region), SignatureChange::Keep), &[]));
    assert_eq!(node.told.sent[0].status, WcStatus::MwBindErr);
    assert!(node.keys.signature_error(77).is_err());
}

/// A pair, and on each side memory of `len` bytes under a key with these signatures.
fn signed_pair(
    faults: Faults,
    mtu: u32,
    seed: u64,
    len: usize,
    rules: [BlockSignature; 2],
) -> (Pair, [Region; 2], [u32; 2]) {
    let setup = Setup { timeout: 8, mtu, ..Setup::new(QpType::Rc) };
    let mut pair = Pair::new(&setup, 64 << 10, seed, faults);
    let regions = [0, 1].map(|side: usize| pair.nodes[side].register(len as u64));
    let mut rules = rules.into_iter();
    let keys = [0, 1].map(|side: usize| {
        signed(&mut pair.nodes[side], &regions[side], len, rules.next().unwrap())
    });
    (pair, regions, keys)
}

#[test]
fn messages_of_all_kinds_carry_their_fields_over_a_bad_network() {
    let limit = Duration::from_secs(60);
    // Memory of the one side has CRC-32C behind 520 bytes, of the other nothing; the wire has T10-DIF behind 512.
    let (own, wire) = (Some(crc(GuardKind::Crc32c, 520)), Some(dif(512)));
    let data: Vec<u8> = (0..520u32 * 40).map(|at| (at / 7 * at) as u8).collect();
    let (lies, passes) = (image(&data, &own), image(&data, &wire));
    for seed in 0..6 {
        let faults = Faults { loss: 10, duplicate: 10, reorder: 0, ..Faults::NONE };
        let rules =
            [None, own].map(|memory| BlockSignature::new(memory, wire, 0xff, None).unwrap());
        let mtu = [1, 3, 5][seed as usize % 3];
        let (mut pair, regions, keys) = signed_pair(faults, mtu, seed, lies.len(), rules);
        // Of two domains with fields of their own a local request counts as memory does.
        let near = Sge { addr: 0, length: lies.len() as u32, lkey: keys[1] };
        let plain = Sge { addr: 0, length: data.len() as u32, lkey: keys[0] };
        let far = Remote { addr: 0, rkey: keys[0] };
        let ops = [SendOp::Write(far), SendOp::Send, SendOp::Read(far)];
        for (number, op) in ops.into_iter().enumerate() {
            let reads = matches!(op, SendOp::Read(_));
            regions[0].set(0, &vec![0; lies.len()]);
            regions[1].set(0, &vec![0; lies.len()]);
            if reads {
                regions[0].set(0, &data);
            } else {
                regions[1].set(0, &lies);
            }
            pair.nodes[0].post_recv(1, &[plain]);
            pair.nodes[1].post_send(send_wr(2, op, &[near]));
            pair.run_until(limit, |pair| pair.nodes[1].told.sent.len() == number + 1);
            let done = &pair.nodes[1].told.sent[number];
            assert_eq!(done.status, WcStatus::Success);
            assert_eq!(done.byte_len as usize, passes.len());
            assert!(regions[0].get(0, data.len()) == data, "{number}");
            assert!(regions[1].get(0, lies.len()) == lies, "{number}");
        }
        assert_eq!(pair.nodes[0].told.received[0].byte_len as usize, passes.len());
        for (node, key) in pair.nodes.iter().zip(keys) {
            assert_eq!(node.keys.signature_error(key), Ok(None));
        }
    }
}

#[test]
fn a_receive_has_room_for_what_the_wire_brings() {
    let wire = Some(dif(512));
    let strip = || BlockSignature::new(None, wire, 0xff, None).unwrap();
    let (mut pair, regions, keys) = signed_pair(Faults::NONE, 5, 1, 2048, [strip(), strip()]);
    let data: Vec<u8> = (0..1024).map(|at| (at % 251) as u8).collect();
    regions[1].set(0, &data);
    let sge = |side: usize, addr, length| Sge { addr, length, lkey: keys[side] };
    // Two entries, and plain memory behind them.
    let behind = regions[0].sge(1500, 16);
    let entries = [sge(0, 0, 512), Sge { length: 0, ..behind }, sge(0, 512, 512), behind];
    pair.nodes[0].post_recv(1, &entries);
    pair.nodes[1].post_send(send_wr(2, SendOp::Send, &[sge(1, 0, 1024)]));
    pair.settle();
    assert_eq!(pair.nodes[0].told.received[0].status, WcStatus::Success);
    assert_eq!(pair.nodes[0].told.received[0].byte_len, 1040);
    assert!(regions[0].get(0, 1024) == data);
    assert_eq!(pair.nodes[0].keys.signature_error(keys[0]), Ok(None));
    // One byte too many is too many.
    regions[1].set(1024, &[1; 16]);
    let (room, message) = (sge(0, 0, 1024), [sge(1, 0, 1024), regions[1].sge(1024, 1)]);
    pair.nodes[0].post_recv(3, &[room]);
    pair.nodes[1].post_send(send_wr(4, SendOp::Send, &message));
    pair.settle();
    assert_eq!(pair.nodes[0].told.received[1].status, WcStatus::LocLenErr);
}

fn fenced(wr: SendWr) -> SendWr {
    SendWr { flags: SendFlags::SIGNALED | SendFlags::FENCE, ..wr }
}

/// A pair whose second end stops at bad signatures. Its memory has CRC-32 behind 512 bytes, and none passes.
fn stopping() -> (Pair, [Region; 2], [u32; 2]) {
    let crc = Some(crc(GuardKind::Crc32, 512));
    let check = || BlockSignature::new(crc, None, 0xf0, None).unwrap();
    let (mut pair, regions, keys) = signed_pair(Faults::NONE, 1, 3, 1032, [check(), check()]);
    pair.nodes[1].qp.stop_at_bad_signatures();
    regions[1].set(0, &image(&[7; 1024], &crc));
    (pair, regions, keys)
}

fn go_on(pair: &mut Pair) {
    let attr = QpAttr { qp_state: QpState::Rts, ..pair.nodes[1].qp.query() };
    pair.nodes[1].modify(&attr, AttrMask::STATE).unwrap();
    pair.nodes[1].with(|qp, cx| qp.transmit(cx));
    pair.settle();
}

fn told(pair: &Pair) -> Vec<(u64, WcStatus)> {
    pair.nodes[1].told.sent.iter().map(|done| (done.wr_id, done.status)).collect()
}

pub fn a_queue_stops_at_a_bad_signature() {
    let (mut pair, regions, keys) = stopping();
    let sge = |at, length| Sge { addr: at, length, lkey: keys[1] };
    let far = SendOp::Write(regions[0].remote(0));
    let answer = || fenced(send_wr(9, SendOp::Send, &[regions[1].sge(0, 16)]));
    pair.nodes[0].post_recv(1, &[regions[0].sge(600, 16)]);
    pair.nodes[0].post_recv(2, &[regions[0].sge(600, 16)]);
    // What is right passes.
    pair.nodes[1].post_send(send_wr(8, far.clone(), &[sge(0, 1024)]));
    pair.nodes[1].post_send(answer());
    pair.settle();
    assert_eq!(told(&pair), [(8, WcStatus::Success), (9, WcStatus::Success)]);
    assert_eq!(pair.nodes[1].qp.state(), QpState::Rts);
    assert!(pair.nodes[1].qp.cancel_sends(9).is_err(), "nothing is drained");
    // The second block is wrong: the data passes, the answer does not.
    regions[1].set(516 + 3, &[0xaa]);
    pair.nodes[1].post_send(send_wr(8, far, &[sge(0, 1024)]));
    pair.nodes[1].post_send(answer());
    pair.nodes[1].post_send(answer());
    pair.settle();
    assert_eq!(told(&pair)[2..], [(8, WcStatus::Success)]);
    assert_eq!(pair.nodes[1].told.events, [EventType::SqDrained]);
    assert_eq!(pair.nodes[1].qp.state(), QpState::Sqd);
    let error = pair.nodes[1].keys.signature_error(keys[1]).unwrap().unwrap();
    assert_eq!((error.fault, error.offset), (SignatureFault::Guard, 516));
    assert_eq!(pair.nodes[0].told.received.len(), 1);
    // Each is cancelled once, and completes in its turn.
    assert_eq!(pair.nodes[1].qp.cancel_sends(8).unwrap(), 0);
    assert_eq!(pair.nodes[1].qp.cancel_sends(9).unwrap(), 2);
    assert_eq!(pair.nodes[1].qp.cancel_sends(9).unwrap(), 0);
    pair.nodes[1].post_send(send_wr(10, SendOp::Send, &[regions[1].sge(0, 16)]));
    assert_eq!(told(&pair).len(), 3);
    go_on(&mut pair);
    let all = [(9, WcStatus::Success), (9, WcStatus::Success), (10, WcStatus::Success)];
    assert_eq!(told(&pair)[3..], all);
    assert!(pair.nodes[1].told.sent[3..].iter().all(|done| done.opcode == WcOpcode::Send));
    assert_eq!(pair.nodes[0].told.received.len(), 2);
    assert_eq!(pair.nodes[1].told.events.len(), 1);
}

#[test]
fn a_queue_that_stops_goes_on_with_what_was_cancelled() {
    a_queue_stops_at_a_bad_signature();
}

#[test]
fn what_a_read_brings_stops_a_queue_as_well() {
    // Here the wire has the fields, which are checked and stripped where the READ ends.
    let wire = Some(crc(GuardKind::Crc32, 512));
    let check = || BlockSignature::new(None, wire, 0xf0, None).unwrap();
    let (mut pair, regions, keys) = signed_pair(Faults::NONE, 1, 4, 1024, [check(), check()]);
    pair.nodes[1].qp.stop_at_bad_signatures();
    let data = Sge { addr: 0, length: 512, lkey: keys[1] };
    let plain = regions[0].remote(0);
    pair.nodes[0].post_recv(1, &[regions[0].sge(600, 16)]);
    pair.nodes[1].post_send(send_wr(1, SendOp::Read(plain), &[data]));
    pair.nodes[1].post_send(fenced(send_wr(2, SendOp::Send, &[regions[1].sge(0, 16)])));
    pair.settle();
    assert_eq!(told(&pair), [(1, WcStatus::Success)]);
    assert_eq!(pair.nodes[1].told.events, [EventType::SqDrained]);
    assert_eq!(pair.nodes[1].qp.cancel_sends(2).unwrap(), 1);
    // In the error state a cancelled request is flushed as any other.
    let attr = QpAttr { qp_state: QpState::Err, ..pair.nodes[1].qp.query() };
    pair.nodes[1].modify(&attr, AttrMask::STATE).unwrap();
    assert_eq!(told(&pair)[1..], [(2, WcStatus::WrFlushErr)]);
}

#[test]
fn a_queue_stops_although_nothing_follows_and_again_later() {
    let (mut pair, regions, keys) = stopping();
    regions[1].set(0, &[0xaa]);
    let data = Sge { addr: 0, length: 512, lkey: keys[1] };
    for round in 1..=3 {
        pair.nodes[1].post_send(send_wr(1, SendOp::Write(regions[0].remote(0)), &[data]));
        pair.settle();
        assert_eq!(told(&pair).len(), round);
        assert_eq!(pair.nodes[1].told.events.len(), round);
        assert_eq!(pair.nodes[1].qp.state(), QpState::Sqd);
        assert!(!pair.nodes[1].qp.query().sq_draining);
        go_on(&mut pair);
        assert_eq!(pair.nodes[1].qp.state(), QpState::Rts);
    }
    // One that was not told to does not.
    pair.nodes[0].post_send(send_wr(
        1,
        SendOp::Write(regions[1].remote(0)),
        &[Sge { addr: 0, length: 512, lkey: keys[0] }],
    ));
    regions[0].set(0, &[0xaa]);
    pair.settle();
    assert_eq!(pair.nodes[0].qp.state(), QpState::Rts);
}
