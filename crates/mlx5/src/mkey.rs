//! Memory keys (PRM "Memory Key Context" `mkc`): what a driver says of a region, as the HCA's keys take it.
//!
//! A key's translation is a [`DmaSpace`] of its own: addresses count from the key's first byte, and it finds the page of
//! guest memory. So the HCA needs to know nothing of page lists.

use crate::bits::Field;
use crate::bus::Bus;
use crate::opcode::Status;
use hca::Access;
use hca::key::{Mkey, PdId};
use std::sync::Arc;
use umem::{AccessError, AtomicOp, DmaSpace, Segment, Umem};

/// Bytes of `create_mkey_in` before the translation.
const CREATE_LEN: usize = 0x110;
const CONTEXT_BIT: usize = 0x80;
const FREE: Field = Field::new(0x1, 1).at(CONTEXT_BIT);
const ACCESS_MODE_HIGH: Field = Field::new(0x3, 3).at(CONTEXT_BIT);
const ACCESS_MODE_LOW: Field = Field::new(0x16, 2).at(CONTEXT_BIT);
const ATOMIC: Field = Field::new(0x11, 1).at(CONTEXT_BIT);
const REMOTE_WRITE: Field = Field::new(0x12, 1).at(CONTEXT_BIT);
const REMOTE_READ: Field = Field::new(0x13, 1).at(CONTEXT_BIT);
const LOCAL_WRITE: Field = Field::new(0x14, 1).at(CONTEXT_BIT);
const TAG: Field = Field::new(0x38, 8).at(CONTEXT_BIT);
const LENGTH_64: Field = Field::new(0x60, 1).at(CONTEXT_BIT);
const PD: Field = Field::new(0x68, 24).at(CONTEXT_BIT);
const START: Field = Field::new(0x80, 64).at(CONTEXT_BIT);
const LEN: Field = Field::new(0xc0, 64).at(CONTEXT_BIT);
const LOG_PAGE_SIZE: Field = Field::new(0x1db, 5).at(CONTEXT_BIT);
/// Units of 16 bytes that follow: two page addresses each.
const TRANSLATION_OCTOWORDS: Field = Field::new(0x300, 32);

const MODE_PHYSICAL: u64 = 0;
const MODE_PAGES: u64 = 1;

/// Memory under a key, by offset.
enum Translation {
    /// The machine's addresses from `start` on.
    Physical { start: u64 },
    /// Pages of 2^`shift` bytes; the key begins `first` bytes into the first.
    Pages { shift: u32, first: u64, pages: Box<[u64]> },
}

/// A key's memory as a space of its own.
struct MkeySpace {
    memory: Arc<dyn DmaSpace>,
    translation: Translation,
}

impl MkeySpace {
    /// Address of the byte at `offset`, and how many bytes follow it there at least.
    fn locate(&self, offset: u64) -> Result<(u64, u64), AccessError> {
        match &self.translation {
            Translation::Physical { start } => {
                Ok((start.checked_add(offset).ok_or(AccessError::OutOfRange)?, u64::MAX))
            }
            Translation::Pages { shift, first, pages } => {
                let at = offset.checked_add(*first).ok_or(AccessError::OutOfRange)?;
                let mut index = usize::try_from(at >> shift).unwrap_or(usize::MAX);
                let page = *pages.get(index).ok_or(AccessError::OutOfRange)?;
                let size = 1u64 << shift;
                let within = at & (size - 1);
                let mut room = size - within;
                // Neighbours are accessed at once, up to what a packet has.
                let mut end = page.wrapping_add(size);
                while room < 4096 && pages.get(index + 1) == Some(&end) {
                    room += size;
                    index += 1;
                    end = end.wrapping_add(size);
                }
                Ok((page.checked_add(within).ok_or(AccessError::OutOfRange)?, room))
            }
        }
    }

    fn pieces(
        &self,
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, usize, usize) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let mut from = 0;
        while from < len {
            let at = offset.checked_add(from as u64).ok_or(AccessError::OutOfRange)?;
            let (addr, room) = self.locate(at)?;
            let piece = usize::try_from(room).map_or(len - from, |room| room.min(len - from));
            each(addr, from, from + piece)?;
            from += piece;
        }
        Ok(())
    }
}

impl DmaSpace for MkeySpace {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.pieces(addr, dst.len(), |at, from, to| self.memory.read(at, &mut dst[from..to]))
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        self.pieces(addr, src.len(), |at, from, to| self.memory.write(at, &src[from..to]))
    }

    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let (at, room) = self.locate(addr)?;
        if room < 8 || !at.is_multiple_of(8) {
            return Err(AccessError::OutOfRange);
        }
        self.memory.atomic(at, op)
    }
}

/// What `create_mkey_in` describes.
pub(crate) struct NewKey {
    /// The low 8 bits of the key.
    pub(crate) tag: u8,
    /// Protection domain, as its number.
    pub(crate) pd: u32,
    start: u64,
    access: Access,
    umem: Arc<Umem>,
}

impl NewKey {
    pub(crate) fn parse(bus: &dyn Bus, input: &[u8]) -> Result<NewKey, Status> {
        let mode = ACCESS_MODE_HIGH.get(input) << 2 | ACCESS_MODE_LOW.get(input);
        if FREE.is_set(input) {
            // Keys without memory are filled by UMR, which no capability promises.
            return Err(Status::BadParameter);
        }
        let start = START.get(input);
        let len = if LENGTH_64.is_set(input) { u64::MAX } else { LEN.get(input) };
        let translation = match mode {
            MODE_PHYSICAL => Translation::Physical { start },
            MODE_PAGES => pages(input, start, len)?,
            _ => return Err(Status::BadParameter),
        };
        let access = access(input);
        let space = Arc::new(MkeySpace { memory: bus.memory(), translation });
        let route = Arc::new(pcie::Route::local());
        let segment = Segment { space, addr: 0, len, route };
        // What may be written the key's rights say.
        let umem = Umem::from_segments(vec![segment], true);
        Ok(NewKey { tag: TAG.get(input) as u8, pd: PD.get32(input), start, access, umem })
    }

    pub(crate) fn mkey(self, pd: PdId) -> Mkey {
        Mkey { pd, iova: self.start, access: self.access, umem: self.umem }
    }
}

fn pages(input: &[u8], start: u64, len: u64) -> Result<Translation, Status> {
    let shift = LOG_PAGE_SIZE.get32(input);
    if !(12..=31).contains(&shift) {
        return Err(Status::BadParameter);
    }
    let list = input.get(CREATE_LEN..).unwrap_or_default();
    let bytes = usize::try_from(TRANSLATION_OCTOWORDS.get(input) * 16).unwrap_or(usize::MAX);
    let list = list.get(..bytes).ok_or(Status::BadInputLength)?;
    // The low bits say whether the page is there, which only on-demand paging asks.
    let pages: Box<[u64]> = list
        .chunks_exact(8)
        .map(|page| u64::from_be_bytes(page.try_into().unwrap_or_default()) & !0xfff)
        .collect();
    let first = start & ((1 << shift) - 1);
    let room = u128::from(pages.len() as u64) << shift;
    if u128::from(first) + u128::from(len) > room {
        return Err(Status::BadParameter);
    }
    Ok(Translation::Pages { shift, first, pages })
}

fn access(input: &[u8]) -> Access {
    let rights = [
        (LOCAL_WRITE, Access::LOCAL_WRITE),
        (REMOTE_READ, Access::REMOTE_READ),
        (REMOTE_WRITE, Access::REMOTE_WRITE),
        (ATOMIC, Access::REMOTE_ATOMIC),
    ];
    rights
        .into_iter()
        .filter(|(field, _)| field.is_set(input))
        .fold(Access::empty(), |all, (_, right)| all | right)
}
