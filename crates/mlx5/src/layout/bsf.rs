//! Block signatures of a key as requests describe them (PRM "Byte Stream Format" `bsf`;
//! `struct mlx5_bsf` of rdma-core's `wqe.h`): 64 bytes behind the list of the key's parts.
//!
//! A domain without a block size has no fields. The block format selector describes a CRC,
//! the inline section of its domain T10-DIF. The signature values that a transfer begins with are
//! those of the context, so the PSVs that it names must be there, and say nothing else.

use crate::layout::bits::{be16, be32};
use hca::{BlockSignature, Escape, GuardKind, Signature, SignatureDomain, T10Dif};

/// The length of a description in bytes.
pub(crate) const LEN: usize = 64;

/// Kind of it in the two highest bits: with inline sections, and no more. (3 is with encryption.)
const WITH_INLINE: u8 = 2;
/// Both domains have the structure of memory's, and fields may be copied.
const SAME_STRUCTURE: u8 = 1 << 4;

const CHECK_MASK: usize = 1;
/// Bytes that are copied, or how long the blocks of the wire are.
const WIRE: usize = 2;
const MEMORY: usize = 3;
/// Block format selectors, and below them the number of a PSV.
const WIRE_FORMAT: usize = 8;
const MEMORY_FORMAT: usize = 12;
const WIRE_INLINE: usize = 32;
const MEMORY_INLINE: usize = 48;

/// In a block format selector: the calculation begins with zeros.
const FROM_ZERO: u8 = 1;
/// Fields stand behind every block.
const REPEATS: u8 = 2;
const CRC32: u8 = 0x20;
const CRC32C: u8 = 0x40;
const CRC64_XP10: u8 = 0x50;

/// Places in an inline section, and bits there.
mod inline {
    pub(super) const FLAGS: usize = 0;
    pub(super) const APP_TAG: usize = 2;
    pub(super) const REF_TAG: usize = 4;
    pub(super) const GUARD: usize = 8;
    pub(super) const REPEATS_AND_SEED: usize = 9;
    pub(super) const STEPS: usize = 13;
    pub(super) const APP_MASK: usize = 14;

    pub(super) const VALID: u16 = 1 << 15;
    pub(super) const REPEATS: u8 = 1 << 7;
    pub(super) const SEEDED: u8 = 1 << 3;
    pub(super) const INCREMENTS: u8 = 1 << 6;
    pub(super) const ESCAPE_APP: u8 = 1;
    pub(super) const ESCAPE_APP_AND_REF: u8 = 2;
    pub(super) const T10_CRC: u8 = 1;
    pub(super) const IP_CHECKSUM: u8 = 2;
}

/// Bits of the check mask that stand for the application tag.
const CHECK_APP_TAG: u8 = 0x30;

/// What is described.
#[derive(Clone, Debug)]
pub(crate) struct Format {
    pub(crate) rules: BlockSignature,
    /// Numbers of the PSVs that it names.
    pub(crate) psvs: Vec<u32>,
}

/// It describes nothing that can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("block signatures of a kind that there is not")]
pub(crate) struct Unknown;

/// Reads it.
pub(crate) fn parse(bytes: &[u8; LEN]) -> Result<Format, Unknown> {
    if bytes[0] >> 6 != WITH_INLINE {
        return Err(Unknown);
    }
    let same = bytes[0] & SAME_STRUCTURE != 0;
    let mut check = bytes[CHECK_MASK];
    let wire_size = if same { bytes[MEMORY] } else { bytes[WIRE] };
    let memory = domain(bytes, (bytes[MEMORY], MEMORY_FORMAT, MEMORY_INLINE), &mut check)?;
    let wire = domain(bytes, (wire_size, WIRE_FORMAT, WIRE_INLINE), &mut check)?;
    let copy = same.then_some(bytes[WIRE]);
    let psvs = [(memory, MEMORY_FORMAT), (wire, WIRE_FORMAT)]
        .into_iter()
        .filter(|(domain, _)| domain.is_some())
        .map(|(_, at)| be32(bytes, at) & 0xff_ffff)
        .collect();
    let rules = BlockSignature::new(memory, wire, check, copy).map_err(|_| Unknown)?;
    Ok(Format { rules, psvs })
}

/// A domain: its size of blocks, and where its format and inline section are.
fn domain(
    bytes: &[u8; LEN],
    (size, format, inline): (u8, usize, usize),
    check: &mut u8,
) -> Result<Option<SignatureDomain>, Unknown> {
    let block = match size {
        0 => return Ok(None),
        1 => 512,
        2 => 520,
        3 => 4096,
        4 => 4160,
        6 => 4048,
        _ => return Err(Unknown),
    };
    let signature = match bytes[format] {
        0 => t10_dif(&bytes[inline..inline + 16], check)?,
        selector => crc(selector)?,
    };
    Ok(Some(SignatureDomain { block, signature }))
}

fn crc(selector: u8) -> Result<Signature, Unknown> {
    let guard = match selector & !(FROM_ZERO | REPEATS) {
        CRC32 => GuardKind::Crc32,
        CRC32C => GuardKind::Crc32c,
        CRC64_XP10 => GuardKind::Crc64Xp10,
        _ => return Err(Unknown),
    };
    if selector & REPEATS == 0 {
        return Err(Unknown);
    }
    Ok(Signature::Crc { guard, seeded: selector & FROM_ZERO == 0 })
}

fn t10_dif(section: &[u8], check: &mut u8) -> Result<Signature, Unknown> {
    let flags = section[inline::REPEATS_AND_SEED];
    if be16(section, inline::FLAGS) & inline::VALID == 0 || flags & inline::REPEATS == 0 {
        return Err(Unknown);
    }
    let guard = match section[inline::GUARD] {
        inline::T10_CRC => GuardKind::T10Crc,
        inline::IP_CHECKSUM => GuardKind::IpChecksum,
        _ => return Err(Unknown),
    };
    let steps = section[inline::STEPS];
    let escape = match steps & (inline::ESCAPE_APP | inline::ESCAPE_APP_AND_REF) {
        0 => Escape::Never,
        inline::ESCAPE_APP => Escape::AppTag,
        inline::ESCAPE_APP_AND_REF => Escape::AppAndRefTag,
        _ => return Err(Unknown),
    };
    match be16(section, inline::APP_MASK) {
        0xffff => {}
        0 => *check &= !CHECK_APP_TAG,
        // Single bits of an application tag are not told apart.
        _ => return Err(Unknown),
    }
    Ok(Signature::T10Dif(T10Dif {
        guard,
        seeded: flags & inline::SEEDED != 0,
        app_tag: be16(section, inline::APP_TAG),
        ref_tag: be32(section, inline::REF_TAG),
        increments: steps & inline::INCREMENTS != 0,
        escape,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libmlx5 describes CRC32 on the wire only, and T10-DIF in both domains.
    fn examples() -> [[u8; LEN]; 2] {
        let mut crc = [0; LEN];
        crc[..4].copy_from_slice(&[2 << 6, 0xf0, 1, 0]);
        crc[8..12].copy_from_slice(&[0x22, 0, 0, 7]);
        let mut dif = [0; LEN];
        dif[..4].copy_from_slice(&[2 << 6 | 1 << 4, 0xff, 0xc0, 3]);
        dif[11] = 7;
        dif[15] = 8;
        for inline in [32, 48] {
            dif[inline..inline + 16].copy_from_slice(&[
                0xc0, 0, 0xab, 0xcd, 1, 2, 3, 4, 1, 0x88, 0, 0, 0, 0x40, 0xff, 0xff,
            ]);
        }
        [crc, dif]
    }

    #[test]
    fn drivers_are_understood() {
        let [crc, dif] = examples().map(|bytes| parse(&bytes).unwrap());
        assert_eq!(crc.psvs, [7]);
        let signature = Signature::Crc { guard: GuardKind::Crc32, seeded: true };
        let wire = SignatureDomain { block: 512, signature };
        assert_eq!(crc.rules, BlockSignature::new(None, Some(wire), 0xf0, None).unwrap());
        assert_eq!(dif.psvs, [8, 7]);
        let signature = Signature::T10Dif(T10Dif {
            guard: GuardKind::T10Crc,
            seeded: true,
            app_tag: 0xabcd,
            ref_tag: 0x0102_0304,
            increments: true,
            escape: Escape::Never,
        });
        let both = Some(SignatureDomain { block: 4096, signature });
        assert_eq!(dif.rules, BlockSignature::new(both, both, 0xff, Some(0xc0)).unwrap());
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let [crc, dif] = examples();
        let changed = |mut bytes: [u8; LEN], at: usize, value| {
            bytes[at] = value;
            parse(&bytes).is_err()
        };
        for (at, value) in [(0, 0), (0, 3 << 6), (2, 5), (2, 0), (8, 0x32), (8, 0x20), (8, 0)] {
            assert!(changed(crc, at, value), "{at} {value:#x}");
        }
        for (at, value) in [(32, 0), (41, 8), (40, 3), (45, 0x43), (46, 0x0f), (63, 0)] {
            assert!(changed(dif, at, value), "{at} {value:#x}");
        }
    }

    #[test]
    fn no_bytes_bring_it_down() {
        for seed in 0..50_000u32 {
            let mut bytes = examples()[seed as usize & 1];
            let noise = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
            bytes[usize::from(noise[0]) % LEN] = noise[1];
            bytes[usize::from(noise[2]) % LEN] ^= noise[3];
            let _ = parse(&bytes);
        }
    }
}
