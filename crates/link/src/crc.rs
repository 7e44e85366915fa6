//! The CRC-32 of a packet by wide carry-less multiplication.
//!
//! The ICRC is the greatest cost of the link after the kernel's own, and packets of one or a few
//! KiB are where a general CRC library spends most of its time in setting up and winding down. This
//! one serves RoCE packets only: their length is a multiple of 4, the first block is filled up with
//! zeroes in front (which a CRC does not feel), so there is no tail. It wants AVX-512 and
//! VPCLMULQDQ; elsewhere, and for short packets, the general way is taken.
//!
//! A payload that is copied into place is folded by the copy itself ([`begin`], [`end`]), which
//! reads it only once.
//!
//! The method is folding (Gopal et al., "Fast CRC Computation for Generic Polynomials Using
//! PCLMULQDQ", Intel 2009), here over four registers of 64 bytes.

use mm::guard::fold::{Fold, Register, STEP};
use wire::icrc::LengthCrc;

/// Length of a register.
const BLOCK: usize = 64;
/// Shorter packets are as fast the general way.
const SHORTEST: usize = 4 * BLOCK;

/// ICRC of `transport`, which has the length that `headers` were hashed for: as
/// [`LengthCrc::icrc`], only faster.
#[inline]
pub(crate) fn icrc(headers: &LengthCrc, identification: u16, transport: &[u8]) -> u32 {
    let fast = if transport.len() >= SHORTEST {
        // Without transport bytes the answer is the CRC of the headers before them.
        continued(headers.icrc(identification, &[]), transport)
    } else {
        None
    };
    fast.unwrap_or_else(|| headers.icrc(identification, transport))
}

/// CRC of `transport` (BTH to padding, its fifth byte as ones) going on from `initial`.
#[inline]
fn continued(initial: u32, transport: &[u8]) -> Option<u32> {
    if transport.len() < SHORTEST || !transport.len().is_multiple_of(4) {
        return None;
    }
    Some(closed(&fold(!initial, transport)?))
}

/// CRC of all bytes from the 16 that have the same one, from a register of zeroes.
#[inline]
fn closed(folded: &[u8; 16]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(!0);
    hasher.update(folded);
    hasher.finalize()
}

/// The CRC of a packet whose payload is about to be copied behind the first `headers_len` bytes of
/// `transport`: what the copy goes on from. It takes no bytes where folding does not serve.
#[inline]
pub(crate) fn begin(
    headers: &LengthCrc,
    identification: u16,
    transport: &[u8],
    headers_len: usize,
) -> Fold {
    let payload_len = transport.len() - headers_len;
    let aligned = headers_len.is_multiple_of(4) && payload_len.is_multiple_of(STEP);
    if !aligned || payload_len == 0 || !(8..=BLOCK).contains(&headers_len) || !Fold::is_supported()
    {
        return Fold::off();
    }
    start(!headers.icrc(identification, &[]), transport, headers_len / 4)
}

/// The ICRC of the packet begun so, if all of its payload was folded.
#[inline]
pub(crate) fn end(fold: &Fold, payload_len: usize) -> Option<u32> {
    if payload_len == 0 || fold.folded() != payload_len {
        return None;
    }
    finish(fold.sums()).map(|folded| closed(&folded))
}

#[cfg(not(target_arch = "x86_64"))]
fn start(_register: u32, _transport: &[u8], _words: usize) -> Fold {
    Fold::off()
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn start(register: u32, transport: &[u8], words: usize) -> Fold {
    match transport.first_chunk() {
        // SAFETY: the CPU has the features that the function is compiled for: `begin` asked.
        Some(start) => unsafe { x86::begin(register, words, start) },
        None => Fold::off(),
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn finish(_sums: &[Register; 4]) -> Option<[u8; 16]> {
    None
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn finish(sums: &[Register; 4]) -> Option<[u8; 16]> {
    // SAFETY: the CPU has the features that the function is compiled for: it folded these sums.
    Some(unsafe { x86::finish(sums) })
}

#[cfg(not(target_arch = "x86_64"))]
fn fold(_register: u32, _transport: &[u8]) -> Option<[u8; 16]> {
    None
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn fold(register: u32, transport: &[u8]) -> Option<[u8; 16]> {
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq") {
        // SAFETY: the CPU has the features that the function is compiled for.
        return unsafe { x86::fold(register, transport) };
    }
    None
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::BLOCK;
    use mm::guard::fold::{Fold, Register};
    use std::arch::x86_64::*;
    use std::mem::transmute;

    /// x^`exponent` modulo the CRC-32 polynomial, bit-reflected, one place up: as a factor of a
    /// reflected carry-less product.
    pub(super) const fn factor(exponent: u32) -> i64 {
        let mut value = 1u32 << 31;
        let mut step = 0;
        while step < exponent {
            value = value >> 1 ^ if value & 1 != 0 { 0xedb8_8320 } else { 0 };
            step += 1;
        }
        (value as i64) << 1
    }

    /// The two factors that move 128 bits on by `bits`: of the half that comes first, and the
    /// other.
    const fn factors(bits: u32) -> [i64; 2] {
        [factor(bits + 32), factor(bits - 32)]
    }

    const ON_256_BYTES: [[i64; 2]; 4] = [factors(2048); 4];
    const ON_128_BYTES: [[i64; 2]; 4] = [factors(1024); 4];
    const ON_64_BYTES: [[i64; 2]; 4] = [factors(512); 4];
    /// Moves each lane to where the last one is; the last one is added as it is.
    const TO_LAST_LANE: [[i64; 2]; 4] = [factors(384), factors(256), factors(128), [0, 0]];

    /// The block that begins with the CRC register: the first `words` words (2 to 16) of `start` at
    /// the end of zeroes.
    #[target_feature(enable = "avx512f")]
    fn front(register: u32, words: usize, start: &[u8; BLOCK]) -> __m512i {
        // The CRC register joins the first word, the ones join the second.
        let skipped = 16 - words;
        let front = _mm512_maskz_expand_epi32(0xffff << skipped, load(start));
        let register = _mm512_maskz_set1_epi32(1 << skipped, register as i32);
        let ones = _mm512_maskz_set1_epi32(2 << skipped, 0xff);
        _mm512_xor_si512(_mm512_or_si512(front, ones), register)
    }

    /// What a copy of the payload shall go on from, behind the first `words` words of `start`.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) fn begin(register: u32, words: usize, start: &[u8; BLOCK]) -> Fold {
        let mut sums = [[0; 8]; 4];
        // SAFETY: both types are 64 plain bytes.
        sums[3] = unsafe { transmute::<__m512i, Register>(front(register, words, start)) };
        // SAFETY: both types are 64 plain bytes.
        Fold::new(sums, unsafe { transmute::<[[i64; 2]; 4], Register>(ON_256_BYTES) })
    }

    /// The 16 bytes that four sums come to.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) fn finish(sums: &[Register; 4]) -> [u8; 16] {
        // SAFETY: both types are 256 plain bytes.
        close(unsafe { transmute::<[Register; 4], [__m512i; 4]>(*sums) })
    }

    /// Folds `transport` into 16 bytes; `None` when the masked byte is not in the first block.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    pub(super) fn fold(register: u32, transport: &[u8]) -> Option<[u8; 16]> {
        let (odd, blocks) = transport.as_rchunks::<BLOCK>();
        let start = transport.first_chunk()?;
        let (words, blocks) = match odd.len() / 4 {
            0 => (16, blocks.get(1..)?),
            1 => return None,
            words => (words, blocks),
        };
        let front = front(register, words, start);
        let zero = _mm512_setzero_si512();
        // Registers of zeroes in front make the number of blocks a multiple of four.
        let (head, body) = blocks.split_at(blocks.len() & 3);
        let mut sums = match head {
            [] => [zero, zero, zero, front],
            [a] => [zero, zero, front, load(a)],
            [a, b] => [zero, front, load(a), load(b)],
            [a, b, c, ..] => [front, load(a), load(b), load(c)],
        };
        let on = constants(ON_256_BYTES);
        for four in body.as_chunks::<4>().0 {
            for (sum, block) in sums.iter_mut().zip(four) {
                *sum = moved_plus(*sum, on, load(block));
            }
        }
        Some(close(sums))
    }

    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn close(sums: [__m512i; 4]) -> [u8; 16] {
        let on = constants(ON_64_BYTES);
        let first = moved_plus(sums[0], on, sums[1]);
        let second = moved_plus(sums[2], on, sums[3]);
        let sum = moved_plus(first, constants(ON_128_BYTES), second);
        let last = _mm512_maskz_mov_epi64(0b1100_0000, sum);
        let lanes = moved_plus(sum, constants(TO_LAST_LANE), last);
        let halves =
            _mm256_xor_si256(_mm512_castsi512_si256(lanes), _mm512_extracti64x4_epi64::<1>(lanes));
        let sum =
            _mm_xor_si128(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
        // SAFETY: both types are 16 plain bytes.
        unsafe { transmute::<__m128i, [u8; 16]>(sum) }
    }

    #[target_feature(enable = "avx512f")]
    fn load(block: &[u8; BLOCK]) -> __m512i {
        // SAFETY: the pointer is to 64 readable bytes; the load needs no alignment.
        unsafe { _mm512_loadu_si512(block.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f")]
    fn constants(lanes: [[i64; 2]; 4]) -> __m512i {
        // SAFETY: both types are 64 plain bytes.
        unsafe { transmute(lanes) }
    }

    /// `sum` moved on by the distance of `factors`, plus `next`.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn moved_plus(sum: __m512i, factors: __m512i, next: __m512i) -> __m512i {
        let low = _mm512_clmulepi64_epi128::<0x00>(sum, factors);
        let high = _mm512_clmulepi64_epi128::<0x11>(sum, factors);
        // Exclusive or of all three.
        _mm512_ternarylogic_epi64::<0x96>(low, high, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::icrc::{Addresses, FlowCrc};

    #[test]
    fn every_length_agrees_with_the_general_way() {
        let mut served = 0;
        for len in 0..5000usize {
            let bytes: Vec<u8> = (0..len).map(|at| (at * 37 + len + at / 97) as u8).collect();
            let initial = (len as u32).wrapping_mul(0x9e37_79b9);
            let Some(value) = continued(initial, &bytes) else { continue };
            let mut masked = bytes;
            masked[4] = 0xff;
            let mut hasher = crc32fast::Hasher::new_with_initial(initial);
            hasher.update(&masked);
            assert_eq!(value, hasher.finalize(), "length {len}");
            served += 1;
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq") {
            assert!(served > 1000, "{served}");
            return;
        }
        assert_eq!(served, 0);
    }

    #[test]
    fn icrcs_are_those_of_the_specification() {
        let v4 = Addresses::V4([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let v6 = Addresses::V6(1u128.into(), 2u128.into());
        for addresses in [v4, v6] {
            let flow = FlowCrc::new(addresses, 0xc123);
            for len in (12..4200).step_by(4) {
                let bytes: Vec<u8> = (0..len).map(|at| (at * 11 + at / 101) as u8).collect();
                let value = icrc(&flow.at_length(len), len as u16, &bytes);
                assert_eq!(value, flow.icrc(len as u16, &bytes), "length {len}");
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn factors_are_those_of_the_literature() {
        // k1 to k4 of the paper for the reflected CRC-32.
        let found = [544, 480, 160, 96].map(x86::factor);
        assert_eq!(found, [0x1_5444_2bd4, 0x1_c6e4_1596, 0x1_7519_97d0, 0x0_ccaa_009e]);
    }
}
