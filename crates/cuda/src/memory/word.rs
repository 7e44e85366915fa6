//! A word of memory that a stream writes or waits for.

use super::space::{Memory, Range, Space};
use crate::sys::{Fault, Place, copy, is_word};
use crate::{Error, Res};
use std::sync::Arc;

/// How many bytes a word has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// 32 bits.
    Four = 4,
    /// 64 bits.
    Eight = 8,
}

/// A word that a GPU reaches.
pub struct Word {
    place: Place,
    width: Width,
    /// The memory stays while the word lives, whoever gives it back.
    range: Arc<Range>,
}

impl Word {
    /// The word at an address, of memory that the driver knows and that is not managed.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub fn of(space: &Space, addr: u64, width: Width) -> Res<Word> {
        let len = width as u64;
        let range = space.at(addr).filter(|_| addr.is_multiple_of(len));
        let range = range.filter(|range| !matches!(range.memory, Memory::Managed(_)));
        let range = range.ok_or(Error::INVALID_VALUE)?;
        Ok(Word { place: range.place(addr, len)?, width, range })
    }

    /// Whether what is there `pleases`.
    ///
    /// # Errors
    /// `CUDA_ERROR_ILLEGAL_ADDRESS` where the memory is gone or was given back.
    pub fn is(&self, pleases: impl Fn(u64) -> bool) -> Res<bool> {
        if self.range.is_gone() {
            return Err(Error::ILLEGAL_ADDRESS);
        }
        let looked = self.load().and_then(|seen| Ok(pleases(seen) && self.holds(seen)?));
        looked.map_err(|Fault| Error::ILLEGAL_ADDRESS)
    }

    /// Writes it.
    ///
    /// # Errors
    /// `CUDA_ERROR_ILLEGAL_ADDRESS` where the memory is gone.
    pub fn store(&self, value: u64) -> Res {
        let stored = match self.width {
            Width::Four => copy(self.place, Place::of_bytes(&mut (value as u32).to_ne_bytes())),
            Width::Eight => copy(self.place, Place::of_bytes(&mut value.to_ne_bytes())),
        };
        stored.map_err(|Fault| Error::ILLEGAL_ADDRESS)
    }

    /// What is there, of which a part may be older than another.
    fn load(&self) -> Result<u64, Fault> {
        let mut bytes = [0; 8];
        copy(Place::of_bytes(&mut bytes[..self.width as usize]), self.place)?;
        let [a, b, c, d, ..] = bytes;
        Ok(match self.width {
            Width::Four => u32::from_ne_bytes([a, b, c, d]).into(),
            Width::Eight => u64::from_ne_bytes(bytes),
        })
    }

    /// Whether that was there as a whole. Of 64 bits the first half is looked at again behind the
    /// second.
    fn holds(&self, value: u64) -> Result<bool, Fault> {
        if self.width == Width::Four {
            return is_word(self.place, value as u32);
        }
        let [a, b, c, d, e, f, g, h] = value.to_ne_bytes();
        let first = (0, u32::from_ne_bytes([a, b, c, d]));
        let second = (4, u32::from_ne_bytes([e, f, g, h]));
        for (at, half) in [first, second, first] {
            if !is_word(self.place.part(at..at + 4).ok_or(Fault)?, half)? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Access, Mapping, page_size};

    fn space() -> (Space, u64) {
        let mapping = Mapping::anonymous(page_size(), Access::Both).unwrap();
        let space = Space::default();
        let start = mapping.addr();
        space.add(Range::new(start, 24, 0, 0, Memory::Host(mapping, 0)));
        (space, start)
    }

    #[test]
    fn a_word_is_aligned_and_within_one_range() {
        let (space, start) = space();
        let is_one = |at, width| Word::of(&space, start + at, width).is_ok();
        assert!(is_one(0, Width::Four) && is_one(20, Width::Four) && is_one(16, Width::Eight));
        assert!(!is_one(24, Width::Four) && !is_one(2, Width::Four) && !is_one(4, Width::Eight));
        assert!(Word::of(&space, u64::MAX - 7, Width::Eight).is_err());
        let managed = Mapping::anonymous(page_size(), Access::Both).unwrap();
        let at = managed.addr();
        space.add(Range::new(at, 8, 0, 0, Memory::Managed(managed)));
        assert!(Word::of(&space, at, Width::Four).is_err());
    }

    #[test]
    fn what_is_written_is_there_and_no_more() {
        let (space, start) = space();
        let word = |at, width| Word::of(&space, start + at, width).unwrap();
        word(0, Width::Eight).store(u64::MAX).unwrap();
        word(4, Width::Four).store(0x1_2345_6789).unwrap();
        let seen = |at, width, value| word(at, width).is(|seen| seen == value);
        assert_eq!(seen(0, Width::Eight, 0x2345_6789_ffff_ffff), Ok(true));
        assert_eq!(seen(0, Width::Four, 0xffff_ffff), Ok(true));
        assert_eq!(seen(8, Width::Four, 0), Ok(true));
    }

    #[test]
    fn what_was_given_back_is_an_error() {
        let (space, start) = space();
        let word = Word::of(&space, start, Width::Four).unwrap();
        assert_eq!(word.is(|_| true), Ok(true));
        space.remove(start, |_| true).unwrap();
        assert_eq!(word.is(|_| true), Err(Error::ILLEGAL_ADDRESS));
    }
}
