//! Bytes that a program named, as the driver reaches them: of one range of addresses, of several
//! that follow each other, of an array, or plain host memory.

use super::array::Array;
use super::rows::Rows;
use super::space::{Range, Space};
use crate::sys::{Fault, Place, copy, fill};
use crate::{Error, Res};
use std::sync::Arc;

/// What keeps memory while a span of it lives.
enum Keeper {
    /// Addresses that the driver knows.
    Range { _kept: Arc<Range> },
    /// An array.
    Array { _kept: Arc<Array> },
    /// The program.
    Program,
}

/// One piece, and where it begins in the span.
struct Piece {
    offset: u64,
    place: Place,
    keeper: Keeper,
}

/// Bytes at addresses, or of an array.
pub struct Span {
    pieces: Vec<Piece>,
    len: u64,
    is_device: bool,
    syncs: bool,
}

impl Span {
    /// `len` bytes at an address. What the driver does not know is the program's own.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` where they begin in memory that the driver knows and go beyond
    /// it.
    pub fn any(space: &Space, addr: u64, len: u64) -> Res<Span> {
        if space.at(addr).is_some() {
            return Span::known(space, addr, len);
        }
        addr.checked_add(len).ok_or(Error::INVALID_VALUE)?;
        if addr == 0 && len > 0 {
            return Err(Error::INVALID_VALUE);
        }
        let place = Place::of_program(addr, len);
        let pieces = vec![Piece { offset: 0, place, keeper: Keeper::Program }];
        Ok(Span { pieces, len, is_device: false, syncs: false })
    }

    /// `len` bytes at an address that a GPU can use: memory that the driver knows.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub fn known(space: &Space, addr: u64, len: u64) -> Res<Span> {
        let end = addr.checked_add(len).ok_or(Error::INVALID_VALUE)?;
        let mut span = Span { pieces: Vec::new(), len, is_device: false, syncs: false };
        let mut at = addr;
        loop {
            let range = space.at(at).ok_or(Error::INVALID_VALUE)?;
            let part = range.end().min(end) - at;
            span.is_device |= range.device().is_some();
            span.syncs |= range.syncs.load(std::sync::atomic::Ordering::Relaxed);
            let place = range.place(at, part)?;
            let keeper = Keeper::Range { _kept: range };
            span.pieces.push(Piece { offset: at - addr, place, keeper });
            at += part;
            if at >= end {
                return Ok(span);
            }
        }
    }

    /// `len` bytes of an array.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` beyond its end.
    pub fn of_array(array: Arc<Array>, offset: u64, len: u64) -> Res<Span> {
        let place = array.place(offset, len)?;
        let pieces = vec![Piece { offset: 0, place, keeper: Keeper::Array { _kept: array } }];
        Ok(Span { pieces, len, is_device: true, syncs: false })
    }

    /// Whether some of it is a GPU's.
    pub fn is_device(&self) -> bool {
        self.is_device
    }

    /// Whether work on it is to be done when its call returns: host memory that the driver does not
    /// know, which the program may use for something else then, and what
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` was set for.
    pub fn waits(&self) -> bool {
        self.syncs || self.pieces.iter().any(|piece| matches!(piece.keeper, Keeper::Program))
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The part from `offset`, as far as one piece reaches, at most `len`.
    fn part(&self, offset: u64, len: u64) -> Option<Place> {
        let at = self.pieces.partition_point(|piece| piece.offset <= offset).checked_sub(1)?;
        let piece = &self.pieces[at];
        let from = offset - piece.offset;
        let len = len.min(piece.place.len().checked_sub(from)?);
        piece.place.part(from..from + len)
    }

    /// Fills bytes with a pattern.
    fn fill(&self, offset: u64, len: u64, pattern: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        while done < len {
            let place =
                self.part(offset + done, len - done).filter(|p| !p.is_empty()).ok_or(Fault)?;
            fill(place, pattern)?;
            done += place.len();
        }
        Ok(())
    }

    /// Fills rows with a pattern: `rows` has the target's side for both.
    ///
    /// # Errors
    /// `CUDA_ERROR_ILLEGAL_ADDRESS` where the memory is gone.
    pub fn fill_rows(&self, rows: &Rows, pattern: &[u8]) -> Res {
        rows.each(|to, _| self.fill(to, rows.width, pattern))
            .map_err(|Fault| Error::ILLEGAL_ADDRESS)
    }
}

/// Copies rows.
///
/// # Errors
/// `CUDA_ERROR_ILLEGAL_ADDRESS` where memory is gone.
pub fn copy_rows(to: &Span, from: &Span, rows: &Rows) -> Res {
    let row = |to_at: u64, from_at: u64| {
        let mut done = 0;
        while done < rows.width {
            let left = rows.width - done;
            let target = to.part(to_at + done, left).ok_or(Fault)?;
            let source = from.part(from_at + done, target.len()).filter(|p| !p.is_empty());
            let source = source.ok_or(Fault)?;
            copy(target, source)?;
            done += source.len();
        }
        Ok(())
    };
    rows.each(row).map_err(|Fault| Error::ILLEGAL_ADDRESS)
}
