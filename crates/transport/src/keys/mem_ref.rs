//! Checked ranges under keys.

use super::rights::KeyError;
use super::signed_memory::{Alarm, SignedMemory};
use crate::sabotage::{self, Sabotage};
use std::ops::Range;
use std::sync::Arc;
use umem::{AccessError, AtomicOp, Fold, Sink, Source, Umem};

/// A checked range under a key. Holding it keeps the key's memory object, not its mapping: each
/// access enters anew and fails once the key is gone.
///
/// Most are in one registration, and nothing is asked for to hold one. Others take memory each
/// time, for as many pieces as they are in, and may find none: [`KeyError::NoMemory`].
pub struct MemRef {
    pub(super) memory: Memory,
    pub(super) len: u64,
}

/// Where the bytes of a range are.
pub(super) enum Memory {
    /// One registration, and where in it they begin.
    One(Arc<Umem>, u64),
    /// Several pieces, each with its place among them, and where in all of them the range begins.
    Many(Vec<(u64, MemRef)>, u64),
    /// A key with signatures, and the address on the wire at which the range begins.
    Signed(Apart<SignedMemory>, u64),
}

/// A value in memory of its own: a box that can be had without ending the program where there is
/// no memory for it.
pub(super) struct Apart<T>(Vec<T>);

impl<T> Apart<T> {
    fn new(value: T) -> std::result::Result<Apart<T>, KeyError> {
        let mut place = Vec::new();
        place.try_reserve_exact(1).map_err(|_| KeyError::NoMemory)?;
        place.push(value);
        Ok(Apart(place))
    }

    fn get(&self) -> std::result::Result<&T, AccessError> {
        self.0.first().ok_or(AccessError::OutOfRange)
    }
}

fn end_of(pieces: &[(u64, MemRef)]) -> u64 {
    pieces.last().map_or(0, |(start, piece)| start + piece.len())
}

/// Adds a range to those before it.
///
/// # Errors
/// [`KeyError::NoMemory`].
pub(crate) fn append(
    pieces: &mut Vec<(u64, MemRef)>,
    piece: MemRef,
) -> std::result::Result<(), KeyError> {
    pieces.try_reserve(1).map_err(|_| KeyError::NoMemory)?;
    pieces.push((end_of(pieces), piece));
    Ok(())
}

impl MemRef {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies out from `at`, counted from the start of the range.
    pub fn read(&self, at: u64, dst: &mut [u8]) -> std::result::Result<(), AccessError> {
        let offset = self.place(at, dst.len())?;
        match &self.memory {
            Memory::One(umem, _) => umem.read(offset, dst, self.len - at - dst.len() as u64),
            Memory::Many(pieces, _) => for_each(pieces, offset, dst.len(), |piece, at, part| {
                piece.read(at, &mut dst[part])
            }),
            Memory::Signed(signed, _) => signed.get()?.read(offset, dst),
        }
    }

    /// As [`read`](MemRef::read), folding the bytes on the way where that can be.
    pub fn read_folding(
        &self,
        at: u64,
        dst: &mut [u8],
        fold: &mut Fold,
    ) -> std::result::Result<(), AccessError> {
        let offset = self.place(at, dst.len())?;
        match &self.memory {
            Memory::One(umem, _) => {
                umem.read_folding(offset, dst, fold, self.len - at - dst.len() as u64)
            }
            Memory::Many(..) | Memory::Signed(..) => {
                *fold = Fold::off();
                self.read(at, dst)
            }
        }
    }

    /// Copies in at `at`.
    pub fn write(&self, at: u64, src: &[u8]) -> std::result::Result<(), AccessError> {
        let offset = self.place(at, src.len())?;
        match &self.memory {
            Memory::One(umem, _) => umem.write(offset, src, self.len - at - src.len() as u64),
            Memory::Many(pieces, _) => {
                for_each(pieces, offset, src.len(), |piece, at, part| piece.write(at, &src[part]))
            }
            Memory::Signed(signed, _) => signed.get()?.write(offset, src),
        }
    }

    /// Has `each` read bytes where they are, piece by piece; see [`umem::Access::read_in_place`].
    /// [`AccessError::Unreachable`] for memory that is not simply there: in several registrations,
    /// with signatures, or brought in on demand.
    pub fn read_in_place(
        &self,
        at: u64,
        len: usize,
        each: &mut dyn FnMut(Source<'_>) -> std::result::Result<(), AccessError>,
    ) -> std::result::Result<(), AccessError> {
        let (umem, offset) = self.simple(at, len)?;
        umem.enter()?.read_in_place(offset, len, each)
    }

    /// The same for writing; see [`umem::Access::write_in_place`].
    pub fn write_in_place(
        &self,
        at: u64,
        len: usize,
        each: &mut dyn FnMut(Sink<'_>) -> std::result::Result<(), AccessError>,
    ) -> std::result::Result<(), AccessError> {
        let (umem, offset) = self.simple(at, len)?;
        umem.enter()?.write_in_place(offset, len, each)
    }

    /// Whether it is in one registration, whose pages are there.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(&self.memory, Memory::One(umem, _) if !umem.is_on_demand())
    }

    /// Whether some of its bytes may be at these addresses of this process.
    pub(crate) fn may_lie_over(&self, range: &Range<u64>) -> bool {
        match &self.memory {
            Memory::One(umem, offset) => umem.may_lie_over(*offset, self.len, range),
            Memory::Many(..) | Memory::Signed(..) => true,
        }
    }

    fn simple(&self, at: u64, len: usize) -> std::result::Result<(&Umem, u64), AccessError> {
        let offset = self.place(at, len)?;
        match &self.memory {
            Memory::One(umem, _) if !umem.is_on_demand() => Ok((umem, offset)),
            _ => Err(AccessError::Unreachable),
        }
    }

    /// One atomic on the word at the start of the range.
    pub fn atomic(&self, op: AtomicOp) -> std::result::Result<u64, AccessError> {
        let offset = self.place(0, 8)?;
        match &self.memory {
            Memory::One(umem, _) => umem.atomic(offset, op),
            Memory::Many(pieces, _) => {
                let mut found = Err(AccessError::OutOfRange);
                for_each(pieces, offset, 8, |piece, at, part| {
                    // A word that lies in two places cannot change at once.
                    if part.len() == 8 {
                        found = piece.part(at, 8).map_err(|_| AccessError::OutOfRange)?.atomic(op);
                    }
                    Ok(())
                })?;
                found
            }
            // A word between whose bytes there may be others.
            Memory::Signed(..) => Err(AccessError::OutOfRange),
        }
    }

    /// Whether an access could be served now, or fails now: see [`Umem::is_ready`].
    pub fn is_ready(&self, at: u64, len: usize, write: bool) -> bool {
        let Ok(offset) = self.place(at, len) else { return true };
        match &self.memory {
            Memory::One(umem, _) => umem.is_ready(offset, len, write),
            Memory::Many(pieces, _) => {
                let mut ready = true;
                let looked = for_each(pieces, offset, len, |piece, at, part| {
                    ready &= piece.is_ready(at, part.len(), write);
                    Ok(())
                });
                looked.is_err() || ready
            }
            Memory::Signed(signed, _) => {
                signed.get().map_or(true, |signed| signed.is_ready(offset, len, write))
            }
        }
    }

    /// The `len` bytes of `signed` from `start` on, as the wire counts.
    ///
    /// # Errors
    /// [`KeyError::NoMemory`].
    pub(crate) fn signed(
        signed: SignedMemory,
        start: u64,
        len: u64,
    ) -> std::result::Result<MemRef, KeyError> {
        Ok(MemRef { memory: Memory::Signed(Apart::new(signed)?, start), len })
    }

    /// A second reference to the same range.
    ///
    /// # Errors
    /// [`KeyError::NoMemory`].
    pub(crate) fn try_clone(&self) -> std::result::Result<MemRef, KeyError> {
        let memory = match &self.memory {
            Memory::One(umem, offset) => Memory::One(umem.clone(), *offset),
            Memory::Many(pieces, offset) => {
                let mut same = Vec::new();
                same.try_reserve_exact(pieces.len()).map_err(|_| KeyError::NoMemory)?;
                for (start, piece) in pieces {
                    same.push((*start, piece.try_clone()?));
                }
                Memory::Many(same, *offset)
            }
            Memory::Signed(signed, start) => {
                let same = signed.get().map_err(|_| KeyError::Range)?.try_clone()?;
                Memory::Signed(Apart::new(same)?, *start)
            }
        };
        Ok(MemRef { memory, len: self.len })
    }

    /// The same, which rings `alarm` when the signature of a block fails its check.
    pub(crate) fn watched(mut self, alarm: Option<&Alarm>) -> MemRef {
        self.watch(alarm);
        self
    }

    /// Has `alarm` ring from now on.
    pub(crate) fn watch(&mut self, alarm: Option<&Alarm>) {
        if let (Memory::Signed(signed, _), Some(alarm)) = (&mut self.memory, alarm)
            && let Some(signed) = signed.0.first_mut()
        {
            signed.watch(alarm);
        }
    }

    /// Several ranges, one after the other, with the place of each among them ([`append`]).
    pub(crate) fn of(mut pieces: Vec<(u64, MemRef)>) -> MemRef {
        if pieces.len() == 1
            && let Some((_, only)) = pieces.pop()
        {
            return only;
        }
        let len = end_of(&pieces);
        MemRef { memory: Memory::Many(pieces, 0), len }
    }

    /// The `len` bytes from `at` on, counted from the start of the range.
    pub(crate) fn part(&self, at: u64, len: u64) -> std::result::Result<MemRef, KeyError> {
        let end = at.checked_add(len).ok_or(KeyError::Range)?;
        if end > self.len && !sabotage::on(Sabotage::SkipRangeCheck) {
            return Err(KeyError::Range);
        }
        let mut part = MemRef { len, ..self.try_clone()? };
        let (Memory::One(_, offset) | Memory::Many(_, offset) | Memory::Signed(_, offset)) =
            &mut part.memory;
        *offset = offset.saturating_add(at);
        Ok(part)
    }

    /// The `len` bytes from `va` on of memory that begins at `iova`, if all are in it.
    pub(crate) fn within(
        umem: &Arc<Umem>,
        iova: u64,
        va: u64,
        len: u64,
    ) -> std::result::Result<MemRef, KeyError> {
        let offset = va.checked_sub(iova).ok_or(KeyError::Range)?;
        let end = offset.checked_add(len).ok_or(KeyError::Range)?;
        if end > umem.len() && !sabotage::on(Sabotage::SkipRangeCheck) {
            return Err(KeyError::Range);
        }
        Ok(MemRef { memory: Memory::One(umem.clone(), offset), len })
    }

    fn place(&self, at: u64, len: usize) -> std::result::Result<u64, AccessError> {
        let (Memory::One(_, offset) | Memory::Many(_, offset) | Memory::Signed(_, offset)) =
            &self.memory;
        match at.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(offset + at),
            _ => Err(AccessError::OutOfRange),
        }
    }
}

/// Calls `each` with the pieces that `len` bytes from `offset` on fall into, where in the piece,
/// and which of the bytes.
fn for_each(
    pieces: &[(u64, MemRef)],
    offset: u64,
    len: usize,
    mut each: impl FnMut(&MemRef, u64, Range<usize>) -> std::result::Result<(), AccessError>,
) -> std::result::Result<(), AccessError> {
    let first = pieces.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
    let (mut at, mut done) = (offset, 0);
    for (start, piece) in &pieces[first..] {
        if done == len {
            break;
        }
        let room = piece.len().saturating_sub(at - start);
        let here = usize::try_from(room).unwrap_or(usize::MAX).min(len - done);
        if here > 0 {
            each(piece, at - start, done..done + here)?;
            (at, done) = (at + here as u64, done + here);
        }
    }
    if done == len { Ok(()) } else { Err(AccessError::OutOfRange) }
}
