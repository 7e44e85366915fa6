//! Memory on the device (MEMIC; `alloc_memic_in`, `dealloc_memic_in`, `modify_memic_in` of
//! `mlx5_ifc.h`): windows of BAR 0.
//!
//! The driver hands parts of it to programs, which map them and register keys over them. Behind the
//! window with the bytes lie others in which an access to the same place does an operation: a byte
//! that is written is added to the one there, or a byte that is read becomes 1. A part has those of
//! its operations that were asked for.

use crate::layout::bits::Field;
use crate::layout::head::{Answer, Status, done};
use crate::request::memory::{AllocMemic, DeallocMemic, ModifyMemic};
use engine_thread::lock;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use umem::{AtomicOp, DeviceMemory, DmaSpace};

/// The length of the memory in bytes, as much as a ConnectX shows.
pub(crate) const LEN: u64 = 256 << 10;
/// Where its windows are in BAR 0, one for the bytes and one for each operation.
pub(crate) const WINDOWS: Range<u64> = (31 << 20)..(31 << 20) + LEN * (1 + OPERATIONS as u64);
/// Parts are multiples of this, as a logarithm, and aligned to it at least.
pub(crate) const LOG_GRANULE: u64 = 6;
/// Most that may be asked for beyond, as a logarithm: a page.
pub(crate) const LOG_MAX_ALIGNMENT: u64 = 6;

const OPERATIONS: u8 = 2;
const INCREMENT: u8 = 0;
const TEST_AND_SET: u8 = 1;
/// Both, as capabilities list them.
pub(crate) const ALL_OPERATIONS: u64 = 1 << INCREMENT | 1 << TEST_AND_SET;

// Fields of answers.
const ALLOCATED: Field = Field::new(0x40, 64);
const OPERATION_ADDRESS: Field = Field::new(0x80, 64);

/// A part that is given out.
#[derive(Debug)]
pub(crate) struct Part {
    /// Where it begins, from the first byte of the memory on.
    offset: u64,
    len: u64,
    /// Operations that have a window on it, by bit.
    operations: Mutex<u8>,
}

impl Part {
    fn end(&self) -> u64 {
        self.offset + self.len
    }

    fn operations(&self) -> MutexGuard<'_, u8> {
        lock(&self.operations)
    }
}

/// What a key reaches; the part stays as long as it.
#[derive(Clone)]
pub(crate) struct Region {
    pub(crate) memory: Arc<DeviceMemory>,
    _part: Arc<Part>,
}

/// The memory and what is given out of it, by offset.
#[derive(Default)]
pub(crate) struct Memic {
    /// There once a part was asked for.
    memory: OnceLock<Arc<DeviceMemory>>,
    parts: Mutex<BTreeMap<u64, Arc<Part>>>,
}

/// The offset in the memory of an address in the window of its bytes.
pub(crate) fn offset(address: u64) -> Option<u64> {
    address.checked_sub(WINDOWS.start).filter(|&offset| offset < LEN)
}

impl Memic {
    fn parts(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Part>>> {
        lock(&self.parts)
    }

    /// As after power-on; no key is over it.
    pub(crate) fn reset(&self) {
        self.parts().clear();
    }

    /// `ALLOC_MEMIC`: a part somewhere in the range that the driver names, all zero.
    pub(crate) fn alloc(&self, request: &AllocMemic) -> Answer {
        let len = request.memic_size;
        let alignment = request.log_memic_addr_alignment;
        let granules = len > 0 && len.is_multiple_of(1 << LOG_GRANULE);
        if !granules || alignment > LOG_MAX_ALIGNMENT {
            return Err(Status::BadParameter);
        }
        let wanted = offset(request.range_start_addr).ok_or(Status::BadParameter)?;
        let end = wanted.checked_add(request.range_size).filter(|&end| end <= LEN);
        let end = end.ok_or(Status::BadParameter)?;
        let memory = self.memory()?;
        let mut parts = self.parts();
        let mut at = wanted.next_multiple_of(1 << (LOG_GRANULE + alignment));
        // Each part that is in the way moves the beginning behind it.
        while let Some(part) = before(&parts, at.saturating_add(len)).filter(|part| part.end() > at)
        {
            at = part.end().next_multiple_of(1 << (LOG_GRANULE + alignment));
        }
        if at.saturating_add(len) > end {
            return Err(Status::NoResources);
        }
        memory.write(at, &vec![0; len as usize]).map_err(|_| Status::Internal)?;
        parts.insert(at, Arc::new(Part { offset: at, len, operations: Mutex::new(0) }));
        let mut answer = vec![0; 8];
        ALLOCATED.before_head().set(&mut answer, WINDOWS.start + at);
        Ok(answer)
    }

    /// The memory itself.
    fn memory(&self) -> Result<&Arc<DeviceMemory>, Status> {
        if let Some(memory) = self.memory.get() {
            return Ok(memory);
        }
        let made = DeviceMemory::new(LEN).map_err(|_| Status::NoResources)?;
        Ok(self.memory.get_or_init(|| Arc::new(made)))
    }

    /// `DEALLOC_MEMIC`, once no key is over the part.
    pub(crate) fn dealloc(&self, request: &DeallocMemic) -> Answer {
        let at = offset(request.memic_start_addr).ok_or(Status::BadResource)?;
        let mut parts = self.parts();
        let part = parts.get(&at).ok_or(Status::BadResource)?;
        // The driver says in other units how long it is, and need not.
        if Arc::strong_count(part) > 1 {
            return Err(Status::Busy);
        }
        parts.remove(&at);
        done()
    }

    /// `MODIFY_MEMIC`: opens a window of an operation on a part, or closes it.
    pub(crate) fn modify(&self, request: &ModifyMemic) -> Answer {
        const OPEN: u16 = 0;
        const CLOSE: u16 = 1;
        let at = offset(request.memic_start_addr).ok_or(Status::BadResource)?;
        let operation = request.memic_operation_type;
        if operation >= OPERATIONS {
            return Err(Status::BadParameter);
        }
        let parts = self.parts();
        let part = parts.get(&at).ok_or(Status::BadResource)?;
        match request.op_mod {
            OPEN => *part.operations() |= 1 << operation,
            CLOSE => *part.operations() &= !(1 << operation),
            _ => return Err(Status::BadParameter),
        }
        let mut answer = vec![0; 0x38];
        let window = WINDOWS.start + LEN * u64::from(1 + operation);
        OPERATION_ADDRESS.before_head().set(&mut answer, window + at);
        Ok(answer)
    }

    /// What a key over `len` bytes from `address` on reaches, and the offset of the first of them.
    pub(crate) fn region(&self, address: u64, len: u64) -> Result<(Region, u64), Status> {
        let at = offset(address).ok_or(Status::BadParameter)?;
        let parts = self.parts();
        let end = at.checked_add(len).ok_or(Status::BadParameter)?;
        let part = before(&parts, at.saturating_add(1))
            .filter(|part| at < part.end() && end <= part.end());
        let part = part.ok_or(Status::BadParameter)?;
        let memory = self.memory.get().ok_or(Status::BadParameter)?;
        Ok((Region { memory: memory.clone(), _part: part.clone() }, at))
    }

    /// A read of BAR 0 within [`WINDOWS`].
    pub(crate) fn read(&self, address: u64, data: &mut [u8]) {
        let Some(memory) = self.memory.get() else { return };
        match self.place(address, data.len()) {
            Some((None, at)) => {
                let _ = memory.read(at, data);
            }
            Some((Some(TEST_AND_SET), at)) => {
                if let [byte] = data {
                    *byte = replace(memory, at, |_| 1).unwrap_or(0);
                }
            }
            _ => {}
        }
    }

    /// A write of BAR 0 within [`WINDOWS`].
    pub(crate) fn write(&self, address: u64, data: &[u8]) {
        let Some(memory) = self.memory.get() else { return };
        match self.place(address, data.len()) {
            Some((None, at)) => {
                let _ = memory.write(at, data);
            }
            Some((Some(INCREMENT), at)) => {
                if let [byte] = data {
                    replace(memory, at, |old| old.wrapping_add(*byte));
                }
            }
            _ => {}
        }
    }

    /// Which operation's window an address is in, if it is not that of the bytes, and the offset;
    /// nothing for one that no part has a window at.
    fn place(&self, address: u64, len: usize) -> Option<(Option<u8>, u64)> {
        let (window, at) = ((address - WINDOWS.start) / LEN, (address - WINDOWS.start) % LEN);
        let parts = self.parts();
        let part = before(&parts, at + 1).filter(|part| at + len as u64 <= part.end())?;
        match (window as u8).checked_sub(1) {
            Some(operation) if *part.operations() >> operation & 1 == 0 => None,
            operation => Some((operation, at)),
        }
    }
}

/// The last part that begins before `offset`.
fn before(parts: &BTreeMap<u64, Arc<Part>>, offset: u64) -> Option<&Arc<Part>> {
    parts.range(..offset).next_back().map(|(_, part)| part)
}

/// Changes a byte, atomically also with regard to atomic operations through a key; gives the old
/// one.
fn replace(memory: &DeviceMemory, at: u64, new: impl Fn(u8) -> u8) -> Option<u8> {
    let (word, byte) = (at & !7, (at & 7) as usize);
    let mut bytes = [0; 8];
    memory.read(word, &mut bytes).ok()?;
    loop {
        let mut changed = bytes;
        changed[byte] = new(bytes[byte]);
        let (compare, swap) = (u64::from_ne_bytes(bytes), u64::from_ne_bytes(changed));
        let old = memory.atomic(word, AtomicOp::CompareSwap { compare, swap }).ok()?;
        if old == compare {
            return Some(bytes[byte]);
        }
        bytes = old.to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(wanted: u64, range_size: u64, memic_size: u64, alignment: u64) -> AllocMemic {
        AllocMemic {
            log_memic_addr_alignment: alignment,
            range_start_addr: WINDOWS.start + wanted,
            range_size,
            memic_size,
        }
    }

    fn part(offset: u64) -> DeallocMemic {
        DeallocMemic { memic_start_addr: WINDOWS.start + offset }
    }

    fn window(op_mod: u16, offset: u64, memic_operation_type: u8) -> ModifyMemic {
        let memic_start_addr = WINDOWS.start + offset;
        ModifyMemic { op_mod, memic_operation_type, memic_start_addr }
    }

    fn at(answer: Answer) -> Result<u64, Status> {
        Ok(ALLOCATED.before_head().get(&answer?) - WINDOWS.start)
    }

    #[test]
    fn parts_lie_apart_in_the_range_that_was_asked_for() {
        let memic = Memic::default();
        assert_eq!(at(memic.alloc(&asked(0x1000, 0x1000, 0x40, 0))), Ok(0x1000));
        assert_eq!(at(memic.alloc(&asked(0x1000, 0x1000, 0x80, 0))), Ok(0x1040));
        assert_eq!(at(memic.alloc(&asked(0x1000, 0x1000, 0x40, 3))), Ok(0x1200));
        assert_eq!(at(memic.alloc(&asked(0, 0x2000, 0x1040, 0))), Err(Status::NoResources));
        assert_eq!(at(memic.alloc(&asked(0, 0x1000, 0x1000, 6))), Ok(0));
        assert_eq!(memic.dealloc(&part(0x1040)), done());
        assert_eq!(memic.dealloc(&part(0x1040)), Err(Status::BadResource));
        assert_eq!(at(memic.alloc(&asked(0x1000, 0x1000, 0x80, 0))), Ok(0x1040));
    }

    #[test]
    fn what_no_driver_asks_for_is_refused() {
        let memic = Memic::default();
        for wrong in [
            asked(0, 0x1000, 0, 0),
            asked(0, 0x1000, 0x44, 0),
            asked(0, 0x1000, 0x40, 7),
            asked(LEN, 0x1000, 0x40, 0),
            asked(0, LEN + 1, 0x40, 0),
            AllocMemic::default(),
        ] {
            assert_eq!(memic.alloc(&wrong), Err(Status::BadParameter));
        }
        assert_eq!(memic.modify(&window(0, 0, 0)), Err(Status::BadResource));
        memic.alloc(&asked(0, 0x1000, 0x40, 0)).unwrap();
        assert_eq!(memic.modify(&window(0, 0, OPERATIONS)), Err(Status::BadParameter));
        assert_eq!(memic.modify(&window(2, 0, 0)), Err(Status::BadParameter));
    }

    #[test]
    fn a_part_is_not_taken_back_from_a_key_and_comes_back_empty() {
        let memic = Memic::default();
        memic.alloc(&asked(0, 0x1000, 0x100, 0)).unwrap();
        memic.write(WINDOWS.start + 0x80, &[7; 4]);
        assert!(memic.region(WINDOWS.start + 0x80, 0x81).is_err(), "beyond it");
        assert!(memic.region(WINDOWS.start + 0x100, 0).is_err());
        let (region, offset) = memic.region(WINDOWS.start + 0x80, 0x80).unwrap();
        let mut bytes = [0; 4];
        region.memory.read(offset, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4]);
        assert_eq!(memic.dealloc(&part(0)), Err(Status::Busy));
        drop(region);
        memic.dealloc(&part(0)).unwrap();
        memic.write(WINDOWS.start + 0x80, &[8; 4]);
        memic.alloc(&asked(0, 0x1000, 0x100, 0)).unwrap();
        memic.read(WINDOWS.start + 0x80, &mut bytes);
        assert_eq!(bytes, [0; 4]);
    }

    #[test]
    fn bytes_are_added_to_and_set_where_windows_are_open() {
        let memic = Memic::default();
        memic.alloc(&asked(0x40, 0xfc0, 0x40, 0)).unwrap();
        let open = |operation: u8| {
            let answer = memic.modify(&window(0, 0x40, operation)).unwrap();
            OPERATION_ADDRESS.before_head().get(&answer)
        };
        let mut byte = [9];
        memic.write(WINDOWS.start + LEN + 0x40, &[5]);
        memic.read(WINDOWS.start + 0x40, &mut byte);
        assert_eq!(byte, [0], "not open yet");
        let (increment, test_and_set) = (open(INCREMENT), open(TEST_AND_SET));
        memic.write(increment + 3, &[250]);
        memic.write(increment + 3, &[8]);
        memic.write(increment, &[1; 2]);
        memic.read(test_and_set + 3, &mut byte);
        assert_eq!(byte, [2]);
        let mut word = [0; 4];
        memic.read(WINDOWS.start + 0x40, &mut word);
        assert_eq!(word, [0, 0, 0, 1]);
        memic.modify(&window(1, 0x40, TEST_AND_SET)).unwrap();
        byte = [0];
        memic.read(test_and_set + 3, &mut byte);
        assert_eq!(byte, [0], "closed");
    }
}
