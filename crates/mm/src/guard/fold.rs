//! Copies that fold a CRC on their way, so that what is sent is read once.
//!
//! Folding is carry-less arithmetic over 64-byte registers (Gopal et al., "Fast CRC Computation for
//! Generic Polynomials Using PCLMULQDQ", Intel 2009): `sum = low(sum) · low(factor) + high(sum) ·
//! high(factor) + next`, on each 128-bit lane. Which polynomial, what stands before the copied
//! bytes and what follows them is the caller's affair; here are four running sums, 256 bytes apart.
//! It wants AVX-512 and VPCLMULQDQ; elsewhere a [`Fold`] takes nothing and the caller goes over the
//! bytes by itself.

#[cfg(target_arch = "x86_64")]
use super::range;
use super::{Fault, LoadFault, Source};

/// Sums and factors of one register: eight words in memory order.
pub type Register = [u64; 8];

/// Bytes that one step folds.
pub const STEP: usize = 256;

/// What the assembly reads and writes.
#[repr(C, align(64))]
struct FoldRegisters {
    sums: [Register; 4],
    factors: Register,
}

/// The sums of the bytes copied so far. Takes whole [`STEP`]s of memory at 64-byte boundaries.
pub struct Fold {
    state: FoldRegisters,
    on: bool,
    folded: usize,
}

impl Fold {
    /// Whether this CPU folds.
    #[inline]
    pub fn is_supported() -> bool {
        #[cfg(target_arch = "x86_64")]
        return is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("vpclmulqdq");
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// One that takes nothing.
    #[inline]
    pub fn off() -> Fold {
        Fold { state: FoldRegisters { sums: [[0; 8]; 4], factors: [0; 8] }, on: false, folded: 0 }
    }

    /// One that goes on from `sums`, each moved on by `factors` per [`STEP`]; takes nothing on a
    /// CPU that cannot.
    #[inline]
    pub fn new(sums: [Register; 4], factors: Register) -> Fold {
        Fold { state: FoldRegisters { sums, factors }, on: Fold::is_supported(), folded: 0 }
    }

    /// Bytes folded so far: those of every [`Source::read_folding`] through this value, or 0 once
    /// one of them was not taken.
    #[inline]
    pub fn folded(&self) -> usize {
        self.folded
    }

    /// The sums.
    #[inline]
    pub fn sums(&self) -> &[Register; 4] {
        &self.state.sums
    }

    #[inline]
    fn takes(&self, addr: u64, len: usize) -> bool {
        self.on && addr.is_multiple_of(64) && len.is_multiple_of(STEP) && len > 0
    }
}

impl Source<'_> {
    /// As [`Source::read`], and folds the very bytes that it copies where `fold` takes them.
    #[inline]
    pub fn read_folding(self, dst: &mut [u8], fold: &mut Fold) -> Result<(), LoadFault> {
        if !fold.takes(self.addr(), dst.len()) {
            // Sums with a gap are of no use.
            *fold = Fold::off();
            return self.read(dst);
        }
        let part = self.part(0, dst.len() as u64)?;
        run(part, dst, &mut fold.state)?;
        fold.folded += dst.len();
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
fn run(source: Source<'_>, dst: &mut [u8], state: &mut FoldRegisters) -> Result<(), Fault> {
    // SAFETY (of the declaration): defined in this room's assembly with this signature; answers 0,
    // or non-zero after a fault.
    unsafe extern "C" {
        fn peerdma_guard_copy_fold(
            dst: *mut u8,
            src: usize,
            len: usize,
            state: *mut FoldRegisters,
        ) -> u32;
    }
    let src = range(source.addr(), dst.len())?;
    // SAFETY: `dst` and `state` are ours, `state` has the layout the routine knows; every load from
    // `src` is guarded and may be made (`Source`); the length is a non-zero multiple of `STEP` and
    // the CPU has the instructions (`Fold::takes`).
    let code = unsafe { peerdma_guard_copy_fold(dst.as_mut_ptr(), src, dst.len(), state) };
    super::done(code)
}

#[cfg(not(target_arch = "x86_64"))]
fn run(source: Source<'_>, dst: &mut [u8], _: &mut FoldRegisters) -> Result<(), Fault> {
    Ok(source.read(dst)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One lane's carry-less step, bit by bit.
    fn moved_plus(sum: [u64; 2], factors: [u64; 2], next: [u64; 2]) -> [u64; 2] {
        let product = |a: u64, b: u64| {
            (0..64)
                .filter(|bit| b >> bit & 1 != 0)
                .fold(0u128, |sum, bit| sum ^ (u128::from(a) << bit))
        };
        let sum = product(sum[0], factors[0]) ^ product(sum[1], factors[1]);
        [next[0] ^ sum as u64, next[1] ^ (sum >> 64) as u64]
    }

    #[repr(align(64))]
    struct Aligned([u8; 1024]);

    #[test]
    fn copies_and_folds_the_same_bytes() {
        let bytes = Aligned(std::array::from_fn(|at| (at * 31 + at / 7) as u8));
        let source = &bytes.0[..768];
        let sums: [Register; 4] = std::array::from_fn(|sum| {
            std::array::from_fn(|word| (sum as u64 * 977) ^ (word as u64) << 50)
        });
        let factors: Register = std::array::from_fn(|word| 0x1_5444_2bd4 + word as u64 % 2);
        let mut expected = sums;
        for step in source.chunks(STEP) {
            for (sum, block) in expected.iter_mut().zip(step.chunks(64)) {
                for (lane, next) in sum.chunks_mut(2).zip(block.chunks(16)) {
                    let next =
                        [&next[..8], &next[8..]].map(|w| u64::from_le_bytes(w.try_into().unwrap()));
                    lane.copy_from_slice(&moved_plus(
                        [lane[0], lane[1]],
                        [factors[0], factors[1]],
                        next,
                    ));
                }
            }
        }
        let mut fold = Fold::new(sums, factors);
        let mut dst = [0u8; 769];
        Source::from(source).read_folding(&mut dst[1..], &mut fold).unwrap();
        assert_eq!(&dst[1..], source);
        if Fold::is_supported() {
            assert_eq!(fold.folded(), 768);
            assert_eq!(*fold.sums(), expected);
        } else {
            assert_eq!(fold.folded(), 0);
        }
    }

    #[test]
    fn what_it_does_not_take_is_copied_and_ends_the_folding() {
        let bytes = Aligned([7; 1024]);
        let from = |offset: usize| Source::from(&bytes.0[offset..]);
        for (offset, len) in [(8, 256), (0, 255), (0, 0), (1, 512)] {
            let mut fold = Fold::new([[1; 8]; 4], [3; 8]);
            let mut dst = [0; 512];
            from(0).read_folding(&mut dst[..256], &mut fold).unwrap();
            from(offset).read_folding(&mut dst[..len], &mut fold).unwrap();
            assert_eq!(dst[..len], [7; 512][..len]);
            assert_eq!(fold.folded(), 0);
            from(0).read_folding(&mut dst[..256], &mut fold).unwrap();
            assert_eq!(fold.folded(), 0, "after a gap");
        }
    }

    #[test]
    fn memory_that_is_gone_is_a_fault() {
        super::super::install();
        let mut fold = Fold::new([[1; 8]; 4], [3; 8]);
        // SAFETY: no memory is at these addresses.
        let gone = unsafe { Source::vouched(4096, 256) };
        assert_eq!(gone.read_folding(&mut [0; 256], &mut fold), Err(LoadFault));
        assert_eq!(fold.folded(), 0);
    }
}
