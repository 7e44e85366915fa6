//! Memory that may be written by its address: a range that somebody vouched for.
//!
//! A guarded store forms no reference, but it changes bytes wherever it goes. So nothing here writes to a bare address: it
//! takes a [`Sink`], whose one unsafe constructor is where a program's promise enters, or a front end's; memory of our own
//! gives one safely ([`crate::Mapping::sink`]). To read takes none: a guarded load changes nothing but its destination.

use super::{
    AtomicOp, Fault, done, peerdma_guard_compare_swap, peerdma_guard_copy_to,
    peerdma_guard_fetch_add, peerdma_guard_fill, range,
};
use std::marker::PhantomData;

/// A range of this process's addresses that may be written while `'a` lasts, by guarded stores only. Whether anything is
/// mapped there shows when it is touched. The default has no byte.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sink<'a> {
    addr: u64,
    len: u64,
    memory: PhantomData<&'a ()>,
}

impl<'a> Sink<'a> {
    /// The range of `len` bytes at `addr`, which may be any numbers: what no user mapping can have is a [`Fault`] later.
    ///
    /// # Safety
    /// As long as the answer or a copy of it is written through, no Rust code has a reference to memory in the range that is
    /// written, nor relies on its bytes: the program gave it to a device or asked for an answer there, or only guarded
    /// copies reach it.
    #[inline]
    pub unsafe fn vouched(addr: u64, len: u64) -> Sink<'a> {
        Sink { addr, len, memory: PhantomData }
    }

    /// Address of the first byte.
    #[inline]
    pub fn addr(self) -> u64 {
        self.addr
    }

    /// Length in bytes.
    #[inline]
    pub fn len(self) -> u64 {
        self.len
    }

    /// Whether the length is 0.
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The `len` bytes from `offset` on; a [`Fault`] if they are not all in it.
    #[inline]
    pub fn part(self, offset: u64, len: u64) -> Result<Sink<'a>, Fault> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let addr = self.addr.checked_add(offset).filter(|_| inside).ok_or(Fault)?;
        Ok(Sink { addr, len, memory: PhantomData })
    }

    /// As [`Sink::part`], by the address of the first byte.
    #[inline]
    pub fn at(self, addr: u64, len: u64) -> Result<Sink<'a>, Fault> {
        self.part(addr.checked_sub(self.addr).ok_or(Fault)?, len)
    }

    /// Copies `src` to the first bytes, in ascending order, the last byte last. After a fault, a prefix of unknown length
    /// has been written.
    #[inline]
    pub fn write(self, src: &[u8]) -> Result<(), Fault> {
        let part = self.part(0, src.len() as u64)?;
        let dst = range(part.addr, src.len())?;
        // SAFETY: `src` is readable for the whole length; every store to `dst` is guarded, and may be made: `vouched`.
        done(unsafe { peerdma_guard_copy_to(dst, src.as_ptr(), src.len()) })
    }

    /// Fills it with copies of the bytes at `src`, which may vanish too. The ranges must not overlap, else bytes mix.
    pub fn copy_from(self, src: u64) -> Result<(), Fault> {
        let len = usize::try_from(self.len).map_err(|_| Fault)?;
        let (dst, src) = (range(self.addr, len)?, range(src, len)?);
        // SAFETY: loads and stores of the routine are both guarded; as for `write`.
        done(unsafe { peerdma_guard_copy_to(dst, src as *const u8, len) })
    }

    /// Sets every byte of it.
    pub fn fill(self, byte: u8) -> Result<(), Fault> {
        let len = usize::try_from(self.len).map_err(|_| Fault)?;
        let addr = range(self.addr, len)?;
        // SAFETY: every store is guarded; as for `write`.
        done(unsafe { peerdma_guard_fill(addr, byte.into(), len) })
    }

    /// One atomic operation on its first 8 bytes, which are aligned; returns the old value. A misaligned address is a
    /// [`Fault`].
    pub fn atomic_u64(self, op: AtomicOp) -> Result<u64, Fault> {
        let word = range(self.part(0, 8)?.addr, 8)?;
        if word % 8 != 0 {
            return Err(Fault);
        }
        let mut old = 0;
        // SAFETY: the access to `word` is guarded, `old` is ours; as for `write`.
        let code = unsafe {
            match op {
                AtomicOp::CompareSwap { compare, swap } => {
                    peerdma_guard_compare_swap(word, compare, swap, &raw mut old)
                }
                AtomicOp::FetchAdd { add } => peerdma_guard_fetch_add(word, add, &raw mut old),
            }
        };
        done(code).map(|()| old)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;
    use crate::guard::{copy_from, install};

    #[test]
    fn nothing_outside_of_it_is_written() {
        install();
        let map = Mapping::anonymous(4096).unwrap();
        let sink = map.sink().part(64, 16).unwrap();
        assert_eq!((sink.addr(), sink.len()), (map.addr() + 64, 16));
        assert_eq!(sink.write(&[1; 17]), Err(Fault));
        assert_eq!(sink.at(sink.addr() - 1, 1), Err(Fault));
        for (offset, len) in [(0, 17), (16, 1), (17, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(sink.part(offset, len), Err(Fault), "{offset} {len}");
        }
        assert_eq!(sink.part(9, 7).unwrap().atomic_u64(AtomicOp::FetchAdd { add: 1 }), Err(Fault));
        sink.part(16, 0).unwrap().fill(9).unwrap();
        sink.at(sink.addr() + 4, 8).unwrap().fill(2).unwrap();
        sink.write(&[3]).unwrap();
        let mut all = [9; 4096];
        copy_from(map.addr(), &mut all).unwrap();
        let mut expected = [0; 4096];
        expected[64] = 3;
        expected[68..76].fill(2);
        assert_eq!(all, expected);
    }

    #[test]
    fn a_range_that_wraps_has_no_part_behind_the_end() {
        // SAFETY: no memory is at these addresses.
        let wild = unsafe { Sink::vouched(u64::MAX - 3, 100) };
        assert_eq!(wild.part(4, 1), Err(Fault));
        assert_eq!(wild.write(&[0; 2]), Err(Fault));
        assert_eq!(wild.fill(0), Err(Fault));
    }
}
