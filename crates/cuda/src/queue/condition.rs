//! What a stream waits for a word of memory to be.

use crate::memory::Width;
use crate::{Error, Res};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Compare {
    /// Not before the value, where numbers go round in a circle.
    NotBefore,
    Equal,
    /// Any bit of the value's is set.
    AnyOf,
    /// Any bit beside the value's is clear.
    AnyClearBeside,
}

/// What a word is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Condition {
    compare: Compare,
    value: u64,
    width: Width,
}

impl Condition {
    /// `CU_STREAM_WAIT_VALUE_FLUSH`: what peers wrote before is to be seen behind the wait. It is
    /// anyhow: it was in memory when their write was complete.
    const FLUSH: u32 = 1 << 30;

    /// What the flags of `cuStreamWaitValue` say.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for flags that are none.
    pub fn new(flags: u32, value: u64, width: Width) -> Res<Condition> {
        let compare = match flags & !Self::FLUSH {
            0 => Compare::NotBefore,
            1 => Compare::Equal,
            2 => Compare::AnyOf,
            3 => Compare::AnyClearBeside,
            _ => return Err(Error::INVALID_VALUE),
        };
        let value = match width {
            Width::Four => u64::from(value as u32),
            Width::Eight => value,
        };
        Ok(Condition { compare, value, width })
    }

    /// Whether a word is so.
    pub fn is_met_by(&self, seen: u64) -> bool {
        match (self.compare, self.width) {
            (Compare::NotBefore, Width::Four) => {
                (seen as u32).wrapping_sub(self.value as u32).cast_signed() >= 0
            }
            (Compare::NotBefore, Width::Eight) => seen.wrapping_sub(self.value).cast_signed() >= 0,
            (Compare::Equal, _) => seen == self.value,
            (Compare::AnyOf, _) => seen & self.value != 0,
            (Compare::AnyClearBeside, Width::Four) => !(seen | self.value) as u32 != 0,
            (Compare::AnyClearBeside, Width::Eight) => !(seen | self.value) != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met(flags: u32, value: u64, width: Width, seen: u64) -> bool {
        Condition::new(flags, value, width).unwrap().is_met_by(seen)
    }

    #[test]
    fn numbers_go_round() {
        use Width::*;
        for flags in [0, 1 << 30] {
            assert!(met(flags, 5, Four, 5) && met(flags, 5, Four, 6) && !met(flags, 5, Four, 4));
        }
        assert!(met(0, 0xffff_fff0, Four, 3) && !met(0, 3, Four, 0xffff_fff0));
        assert!(met(0, 0, Four, 0x7fff_ffff) && !met(0, 0, Four, 0x8000_0000));
        assert!(met(0, u64::MAX - 3, Eight, 1) && !met(0, 1, Eight, u64::MAX - 3));
        assert!(met(0, 0, Eight, 0x8000_0000) && !met(0, 0, Eight, 1 << 63));
    }

    #[test]
    fn words_are_compared_as_a_whole_or_by_bits() {
        use Width::*;
        assert!(met(1, 7, Four, 7) && !met(1, 7, Four, 8));
        assert!(met(1, 1 << 32 | 7, Four, 7), "of 32 bits the others are not looked at");
        assert!(!met(1, 1 << 32 | 7, Eight, 7) && met(1, 1 << 32 | 7, Eight, 1 << 32 | 7));
        assert!(met(2, 6, Four, 2) && !met(2, 6, Four, 9) && !met(2, 0, Eight, u64::MAX));
        assert!(met(2, 1 << 63, Eight, 1 << 63));
        assert!(met(3, 1, Four, 0xffff_fffd) && !met(3, 2, Four, 0xffff_fffd));
        assert!(!met(3, 0, Four, 0xffff_ffff) && met(3, 0, Eight, 0xffff_ffff));
        assert!(!met(3, 0, Eight, u64::MAX));
    }

    #[test]
    fn other_flags_are_none() {
        for flags in [4, 1 << 29, 1 << 31, 1 << 30 | 4, u32::MAX] {
            assert_eq!(Condition::new(flags, 0, Width::Four), Err(Error::INVALID_VALUE));
        }
    }
}
