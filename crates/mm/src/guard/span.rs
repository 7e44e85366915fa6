//! Memory that guarded copies reach by its address: a range that somebody vouched for, typed by
//! what is done there.
//!
//! A guarded load or store forms no reference, but it reads or changes bytes wherever it goes. So
//! nothing here takes a bare address: a copy goes out of a [`Source`] or into a [`Sink`]
//! (Asterinas' `VmReader` and `VmWriter` are the model). Both are a [`Span`], whose one unsafe
//! constructor is where a program's promise enters, or a front end's; memory of our own gives them
//! safely ([`crate::Mapping::source`], [`crate::Mapping::sink`]), and so does a borrowed slice.
//!
//! How a copy may fail follows from its ends: out of a source it fails with [`LoadFault`], into a
//! sink with [`StoreFault`], and from one to the other with [`Fault`], since either may be gone.
//! The other end of the first two is a slice, which cannot fail.

use super::{
    AtomicOp, Fault, done, peerdma_guard_compare_swap, peerdma_guard_copy_from,
    peerdma_guard_copy_to, peerdma_guard_fetch_add, peerdma_guard_fill, range,
};
use std::marker::PhantomData;

/// The memory to read is not there, or the range does not hold the bytes asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory to read faulted")]
pub struct LoadFault;

/// The memory to write is not there or may not be written, or the range does not hold the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the memory to write faulted")]
pub struct StoreFault;

impl From<LoadFault> for Fault {
    fn from(_: LoadFault) -> Fault {
        Fault
    }
}

impl From<StoreFault> for Fault {
    fn from(_: StoreFault) -> Fault {
        Fault
    }
}

/// What is done to the bytes of a [`Span`]: [`Load`] or [`Store`].
pub trait Direction: Copy + sealed::Sealed {
    /// How it fails.
    type Fault: From<Fault>;
}

/// Bytes are read.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Load;

/// Bytes are written; whoever may do that may read them too.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Store;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Load {}
    impl Sealed for super::Store {}
}

impl Direction for Load {
    type Fault = LoadFault;
}

impl Direction for Store {
    type Fault = StoreFault;
}

impl From<Fault> for LoadFault {
    fn from(_: Fault) -> LoadFault {
        LoadFault
    }
}

impl From<Fault> for StoreFault {
    fn from(_: Fault) -> StoreFault {
        StoreFault
    }
}

/// A range of this process's addresses that guarded copies may reach in one direction while `'a`
/// lasts. Whether anything is mapped there shows when it is touched. The default has no byte.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Span<'a, D> {
    addr: u64,
    len: u64,
    direction: PhantomData<D>,
    memory: PhantomData<&'a ()>,
}

/// A range that may be read.
pub type Source<'a> = Span<'a, Load>;

/// A range that may be written.
pub type Sink<'a> = Span<'a, Store>;

impl<'a, D: Direction> Span<'a, D> {
    /// The range of `len` bytes at `addr`, which may be any numbers: what no user mapping can have
    /// is a fault later.
    ///
    /// # Safety
    /// The program gave the memory to a device or named it in a request, or only guarded copies
    /// reach it. As long as the answer or a copy of it is used, no Rust code has an exclusive
    /// reference to memory in the range that is read, nor any reference to memory in it that is
    /// written, nor relies on the bytes there.
    #[inline]
    pub unsafe fn vouched(addr: u64, len: u64) -> Span<'a, D> {
        Span::of(addr, len)
    }

    #[inline]
    fn of(addr: u64, len: u64) -> Span<'a, D> {
        Span { addr, len, direction: PhantomData, memory: PhantomData }
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

    /// The `len` bytes from `offset` on; a fault if they are not all in it.
    #[inline]
    pub fn part(self, offset: u64, len: u64) -> Result<Span<'a, D>, D::Fault> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        let addr = self.addr.checked_add(offset).filter(|_| inside).ok_or(Fault)?;
        Ok(Span::of(addr, len))
    }

    /// As [`Span::part`], by the address of the first byte.
    #[inline]
    pub fn at(self, addr: u64, len: u64) -> Result<Span<'a, D>, D::Fault> {
        self.part(addr.checked_sub(self.addr).ok_or(Fault)?, len)
    }

    /// The address and the length of all of it, for the assembly.
    fn whole(self) -> Result<(usize, usize), Fault> {
        let len = usize::try_from(self.len).map_err(|_| Fault)?;
        Ok((range(self.addr, len)?, len))
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Source<'a> {
        Span::of(bytes.as_ptr() as u64, bytes.len() as u64)
    }
}

impl<'a> From<Sink<'a>> for Source<'a> {
    #[inline]
    fn from(sink: Sink<'a>) -> Source<'a> {
        sink.source()
    }
}

impl Source<'_> {
    /// Copies its first bytes to `dst`. After a fault, a prefix of unknown length of `dst` has been
    /// written.
    #[inline]
    pub fn read(self, dst: &mut [u8]) -> Result<(), LoadFault> {
        let part = self.part(0, dst.len() as u64)?;
        let src = range(part.addr, dst.len())?;
        // SAFETY: `dst` is ours for the whole length; every load from `src` is guarded, and may be
        // made: `vouched`.
        let code = unsafe { peerdma_guard_copy_from(dst.as_mut_ptr(), src, dst.len()) };
        Ok(done(code)?)
    }
}

impl<'a> Sink<'a> {
    /// The same bytes, for reading.
    #[inline]
    pub fn source(self) -> Source<'a> {
        Span::of(self.addr, self.len)
    }

    /// Copies `src` to the first bytes, in ascending order, the last byte last. After a fault, a
    /// prefix of unknown length has been written.
    #[inline]
    pub fn write(self, src: &[u8]) -> Result<(), StoreFault> {
        let part = self.part(0, src.len() as u64)?;
        let dst = range(part.addr, src.len())?;
        // SAFETY: `src` is readable for the whole length; every store to `dst` is guarded, and may
        // be made: `vouched`.
        Ok(done(unsafe { peerdma_guard_copy_to(dst, src.as_ptr(), src.len()) })?)
    }

    /// Fills it with copies of the first bytes of `src`, which may vanish too. The ranges must not
    /// overlap, else bytes mix.
    pub fn copy_from(self, src: Source<'_>) -> Result<(), Fault> {
        let (dst, len) = self.whole()?;
        let (src, _) = src.part(0, self.len)?.whole()?;
        // SAFETY: loads and stores of the routine are both guarded; as for `read` and `write`.
        done(unsafe { peerdma_guard_copy_to(dst, src as *const u8, len) })
    }

    /// Sets every byte of it.
    pub fn fill(self, byte: u8) -> Result<(), StoreFault> {
        let (addr, len) = self.whole()?;
        // SAFETY: every store is guarded; as for `write`.
        Ok(done(unsafe { peerdma_guard_fill(addr, byte.into(), len) })?)
    }

    /// One atomic operation on its first 8 bytes, which are aligned; returns the old value. A
    /// misaligned address is a fault.
    pub fn atomic_u64(self, op: AtomicOp) -> Result<u64, StoreFault> {
        let word = range(self.part(0, 8)?.addr, 8)?;
        if word % 8 != 0 {
            return Err(StoreFault);
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
        Ok(done(code).map(|()| old)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Mapping;
    use crate::guard::install;

    #[test]
    fn nothing_outside_of_it_is_written() {
        install();
        let map = Mapping::anonymous(4096).unwrap();
        let sink = map.sink().part(64, 16).unwrap();
        assert_eq!((sink.addr(), sink.len()), (map.addr() + 64, 16));
        assert_eq!(sink.write(&[1; 17]), Err(StoreFault));
        assert_eq!(sink.at(sink.addr() - 1, 1), Err(StoreFault));
        for (offset, len) in [(0, 17), (16, 1), (17, 0), (u64::MAX, 1), (1, u64::MAX)] {
            assert_eq!(sink.part(offset, len), Err(StoreFault), "{offset} {len}");
        }
        let odd = sink.part(9, 7).unwrap();
        assert_eq!(odd.atomic_u64(AtomicOp::FetchAdd { add: 1 }), Err(StoreFault));
        sink.part(16, 0).unwrap().fill(9).unwrap();
        sink.at(sink.addr() + 4, 8).unwrap().fill(2).unwrap();
        sink.write(&[3]).unwrap();
        let mut all = [9; 4096];
        map.source().read(&mut all).unwrap();
        let mut expected = [0; 4096];
        expected[64] = 3;
        expected[68..76].fill(2);
        assert_eq!(all, expected);
    }

    #[test]
    fn nothing_outside_of_it_is_read() {
        install();
        let map = Mapping::anonymous(4096).unwrap();
        map.sink().fill(5).unwrap();
        let source = map.source().part(64, 16).unwrap();
        let mut bytes = [0; 17];
        assert_eq!(source.read(&mut bytes), Err(LoadFault));
        assert_eq!(bytes, [0; 17]);
        source.read(&mut bytes[..16]).unwrap();
        assert_eq!(bytes[15..], [5, 0]);
        let to = map.sink().part(1024, 17).unwrap();
        assert_eq!(to.copy_from(source), Err(Fault), "more than there is");
        assert_eq!(to.copy_from(map.sink().into()), Ok(()));
    }

    #[test]
    fn a_copy_fails_by_the_end_that_is_gone() {
        install();
        // SAFETY: no user mapping can be there.
        let source = unsafe { Source::vouched(1 << 62, 4096) };
        let here = Mapping::anonymous(4096).unwrap();
        assert_eq!(source.read(&mut [0; 8]), Err(LoadFault));
        assert_eq!(here.sink().copy_from(source), Err(Fault));
        let slice = [7; 4096];
        here.sink().copy_from(slice[..].into()).unwrap();
        let mut last = [0];
        here.source().part(4095, 1).unwrap().read(&mut last).unwrap();
        assert_eq!(last, [7]);
    }

    #[test]
    fn a_range_that_wraps_has_no_part_behind_the_end() {
        // SAFETY: no memory is at these addresses.
        let wild = unsafe { Sink::vouched(u64::MAX - 3, 100) };
        assert_eq!(wild.part(4, 1), Err(StoreFault));
        assert_eq!(wild.write(&[0; 2]), Err(StoreFault));
        assert_eq!(wild.fill(0), Err(StoreFault));
        assert_eq!(wild.source().read(&mut [0; 2]), Err(LoadFault));
    }
}
