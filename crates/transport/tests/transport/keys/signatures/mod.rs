//! Keys with block signatures: what passes on the wire and what lies in memory against an image of
//! each made here, what a check finds, and queue pairs that stop at it.

pub mod connections;
pub mod fields;

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
    SignatureChange::Set(signature)
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
