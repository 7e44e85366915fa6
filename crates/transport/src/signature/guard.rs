//! The guard of a block: a checksum over its data, as the standards of block integrity define them.
//!
//! Table driven, eight bytes a step. The tests compare with the published check values.

use wire::internet;

/// Which checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GuardKind {
    /// CRC-16/T10-DIF (T10 SBC-3, "Logical block guard").
    T10Crc,
    /// The Internet checksum (RFC 1071).
    IpChecksum,
    /// CRC-32 of Fibre Channel and Ethernet (FC-PH, ANSI X3.230).
    Crc32,
    /// CRC-32C, Castagnoli (RFC 3720).
    Crc32c,
    /// The CRC-64 of XP10: that of NVMe (NVM Command Set Specification, "64b CRC Guard").
    Crc64Xp10,
}

type Tables = [[u64; 256]; 8];

static CRC32: Tables = reflected_tables(0xedb8_8320);
static CRC32C: Tables = reflected_tables(0x82f6_3b78);
static CRC64: Tables = reflected_tables(0x9a6c_9329_ac4b_c9b5);
static T10: Tables = t10_tables();

/// Table `n` moves a byte past `n` more; `polynomial` has its bits reversed.
const fn reflected_tables(polynomial: u64) -> Tables {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            register = (register >> 1) ^ (polynomial & (register & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = register;
        byte += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
}

/// The same for the polynomial 0x8bb7, whose highest bit goes first.
const fn t10_tables() -> Tables {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut register = (byte as u64) << 8;
        let mut bit = 0;
        while bit < 8 {
            register = (register << 1) ^ (0x1_8bb7 & (register >> 15 & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = register & 0xffff;
        byte += 1;
    }
    let mut n = 1;
    while n < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[n - 1][byte];
            tables[n][byte] = (before << 8 & 0xffff) ^ tables[0][(before >> 8) as usize];
            byte += 1;
        }
        n += 1;
    }
    tables
}

fn reflected(tables: &Tables, mut register: u64, block: &[u8]) -> u64 {
    let (words, rest) = block.as_chunks::<8>();
    for word in words {
        let bytes = (register ^ u64::from_le_bytes(*word)).to_le_bytes();
        register = (0..8).fold(0, |sum, at| sum ^ tables[7 - at][usize::from(bytes[at])]);
    }
    for byte in rest {
        register = (register >> 8) ^ tables[0][usize::from(register as u8 ^ byte)];
    }
    register
}

fn t10(mut register: u64, block: &[u8]) -> u64 {
    let (words, rest) = block.as_chunks::<8>();
    for word in words {
        let bytes = (register << 48 ^ u64::from_be_bytes(*word)).to_be_bytes();
        register = (0..8).fold(0, |sum, at| sum ^ T10[7 - at][usize::from(bytes[at])]);
    }
    for byte in rest {
        let index = (register >> 8) as u8 ^ byte;
        register = (register << 8 & 0xffff) ^ T10[0][usize::from(index)];
    }
    register
}

/// The guard of `block`. Its calculation begins with all bits one, or with none (`seeded`); those
/// of 32 and 64 bits are complemented at the end either way.
pub fn guard(kind: GuardKind, seeded: bool, block: &[u8]) -> u64 {
    let seed = |ones: u64| if seeded { ones } else { 0 };
    let crc32 = |tables| reflected(tables, seed(u32::MAX.into()), block) ^ u64::from(u32::MAX);
    match kind {
        GuardKind::T10Crc => t10(seed(0xffff), block),
        GuardKind::IpChecksum => (!internet::fold(seed(0xffff) + internet::sum(block))).into(),
        GuardKind::Crc32 => crc32(&CRC32),
        GuardKind::Crc32c => crc32(&CRC32C),
        GuardKind::Crc64Xp10 => !reflected(&CRC64, seed(u64::MAX), block),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_are_those_of_the_catalogue() {
        // reveng.sourceforge.io/crc-catalogue: the CRC of these nine digits.
        let digits = b"123456789";
        for (kind, seeded, check) in [
            (GuardKind::T10Crc, false, 0xd0db),
            (GuardKind::Crc32, true, 0xcbf4_3926),
            (GuardKind::Crc32c, true, 0xe306_9283),
            (GuardKind::Crc64Xp10, true, 0xae8b_1486_0a79_9888),
        ] {
            assert_eq!(guard(kind, seeded, digits), check, "{kind:?}");
        }
    }

    #[test]
    fn check_values_are_those_of_the_standards() {
        let (rising, falling): (Vec<u8>, Vec<u8>) = ((0..32).collect(), (0..32).rev().collect());
        // RFC 3720 B.4, whose bytes are written lowest first.
        for (block, check) in [
            (&[0; 32][..], 0x8a91_36aa),
            (&[0xff; 32], 0x62a8_ab43),
            (&rising, 0x46dd_794e),
            (&falling, 0x113f_db5c),
        ] {
            assert_eq!(guard(GuardKind::Crc32c, true, block), check);
        }
        // NVM Command Set Specification, test cases of the 64b CRC: 4096 bytes.
        let all_zero = guard(GuardKind::Crc64Xp10, true, &[0; 4096]);
        assert_eq!(all_zero, 0x6482_d367_eb22_b64e);
        let all_one = guard(GuardKind::Crc64Xp10, true, &[0xff; 4096]);
        assert_eq!(all_one, 0xc0dd_ba73_02ec_a3ac);
        // SBC-3, the test cases for the CRC.
        let mut two_of_32 = [0; 32];
        two_of_32[..2].fill(0xff);
        let from_the_top: Vec<u8> = (0xe0..=0xff).rev().collect();
        for (block, check) in [
            (&[0; 32][..], 0),
            (&[0xff; 32], 0xa293),
            (&rising, 0x0224),
            (&two_of_32, 0x21b8),
            (&from_the_top, 0xa0b7),
        ] {
            assert_eq!(guard(GuardKind::T10Crc, false, block), check);
        }
        // RFC 1071 section 3: the sum is ddf2.
        let words = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(guard(GuardKind::IpChecksum, false, &words), 0x220d);
    }

    /// Bit by bit, as the definitions say it.
    fn slowly(kind: GuardKind, seeded: bool, block: &[u8]) -> u64 {
        let (width, polynomial) = match kind {
            GuardKind::T10Crc => (16, 0x8bb7),
            GuardKind::Crc32 => (32, 0x04c1_1db7),
            GuardKind::Crc32c => (32, 0x1edc_6f41),
            GuardKind::Crc64Xp10 => (64, 0xad93_d235_94c9_3659),
            GuardKind::IpChecksum => {
                let sum = block.chunks(2).fold(if seeded { 0xffff } else { 0 }, |sum, pair| {
                    let word = u32::from(pair[0]) << 8 | pair.get(1).map_or(0, |b| u32::from(*b));
                    let sum: u32 = sum + word;
                    (sum & 0xffff) + (sum >> 16)
                });
                return u64::from(!(sum as u16));
            }
        };
        let ones = u64::MAX >> (64 - width);
        let lowest_first = width > 16;
        let mut register = if seeded { ones } else { 0 };
        for byte in block {
            for bit in 0..8 {
                let bit = if lowest_first { bit } else { 7 - bit };
                let carry = register >> (width - 1) & 1 != u64::from(byte >> bit & 1);
                register = register << 1 & ones;
                register ^= if carry { polynomial } else { 0 };
            }
        }
        if lowest_first { !(register.reverse_bits() >> (64 - width)) & ones } else { register }
    }

    #[test]
    fn tables_say_what_the_definitions_say() {
        let block: Vec<u8> = (0..523u32).map(|at| (at * at / 3 + at) as u8).collect();
        for kind in [
            GuardKind::T10Crc,
            GuardKind::IpChecksum,
            GuardKind::Crc32,
            GuardKind::Crc32c,
            GuardKind::Crc64Xp10,
        ] {
            for seeded in [false, true] {
                for len in (0..20).chain([511, 512, 520, 523]) {
                    let (fast, slow) =
                        (guard(kind, seeded, &block[..len]), slowly(kind, seeded, &block[..len]));
                    assert_eq!(fast, slow, "{kind:?} {seeded} {len}");
                }
            }
        }
    }
}
