//! The memory of a key with signatures, as the wire sees it.
//!
//! Reads give what passes on the wire and check the fields that lie in memory; writes take what comes from it, check its
//! fields and lay those of memory. Nothing is kept from one packet to the next but fields of which a part has come: a
//! block's guard is calculated from memory when its last byte was moved, so packets may be repeated, and a key's bytes may
//! come in several requests.

use super::{
    BlockSignature, Field, Ledger, MAX_BLOCK, SignatureDomain, SignatureError, data, position,
};
use crate::key::MemRef;
use crate::sabotage::{self, Sabotage};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use umem::AccessError;

type Done = Result<(), AccessError>;

/// Set when a check fails.
pub(crate) type Alarm = Arc<AtomicBool>;

pub(crate) struct SignedMemory {
    rules: Arc<BlockSignature>,
    ledger: Arc<Ledger>,
    /// Whole blocks.
    memory: MemRef,
    /// Where in the key `memory` begins.
    base: u64,
    alarm: Option<Alarm>,
}

impl SignedMemory {
    pub(crate) fn new(
        (rules, ledger): (Arc<BlockSignature>, Arc<Ledger>),
        memory: MemRef,
        base: u64,
    ) -> SignedMemory {
        SignedMemory { rules, ledger, memory, base, alarm: None }
    }

    /// Sets `alarm` as well when a check fails.
    pub(crate) fn watch(&mut self, alarm: &Alarm) {
        self.alarm = Some(alarm.clone());
    }

    /// Gives the bytes from `at` on, as the wire counts.
    pub(crate) fn read(&self, at: u64, dst: &mut [u8]) -> Done {
        if dst.is_empty() {
            return self.memory.read(0, dst);
        }
        let end = at + dst.len() as u64;
        self.for_each_run(at, dst.len(), |run, part| match run {
            Run::Data(at) => self.read_data(at, &mut dst[part]),
            Run::Field(wire, index, within) => {
                let field = self.outgoing(wire, index)?;
                let len = part.len();
                dst[part].copy_from_slice(&field[within..within + len]);
                Ok(())
            }
        })?;
        let Some(memory) = &self.rules.memory else { return Ok(()) };
        let moved = data(&self.rules.wire, at)..data(&self.rules.wire, end);
        for index in memory.completed(&moved) {
            let found = self.read_field(memory, index)?;
            self.check(memory, index, &found)?;
        }
        Ok(())
    }

    /// Takes the bytes from `at` on, as the wire counts.
    pub(crate) fn write(&self, at: u64, src: &[u8]) -> Done {
        let end = at + src.len() as u64;
        self.for_each_run(at, src.len(), |run, part| match run {
            Run::Data(at) => self.write_data(at, &src[part]),
            Run::Field(wire, index, within) => self.incoming(wire, index, within, &src[part]),
        })?;
        let Some(memory) = self.rules.memory.filter(|_| self.rules.copy == 0) else {
            return Ok(());
        };
        let moved = data(&self.rules.wire, at)..data(&self.rules.wire, end);
        for index in memory.completed(&moved) {
            let field = memory.signature.field(index, &self.block(&memory, index)?);
            self.write_field(&memory, index, &field)?;
        }
        Ok(())
    }

    /// Whether an access could be served now, or fails now.
    pub(crate) fn is_ready(&self, at: u64, len: usize, write: bool) -> bool {
        let (needed, _) = self.rules.in_memory(&(at..at + len as u64));
        let len = usize::try_from(needed.end - needed.start).unwrap_or(usize::MAX);
        self.memory.is_ready(needed.start - self.base, len, write)
    }

    /// Calls `each` with the runs of data and the fields that `len` bytes of the wire from `at` on fall into.
    fn for_each_run(
        &self,
        at: u64,
        len: usize,
        mut each: impl FnMut(Run<'_>, Range<usize>) -> Done,
    ) -> Done {
        let mut done = 0;
        while done < len {
            let here = at + done as u64;
            let (run, most) = match &self.rules.wire {
                None => (Run::Data(here), len),
                Some(wire) => match wire.at(here) {
                    Ok(follow) => (Run::Data(wire.data(here)), follow as usize),
                    Err((index, byte)) => {
                        (Run::Field(wire, index, byte), wire.signature.len() - byte)
                    }
                },
            };
            let end = done + most.min(len - done);
            each(run, done..end)?;
            done = end;
        }
        Ok(())
    }

    /// The field that leaves behind block `index`.
    fn outgoing(&self, wire: &SignatureDomain, index: u64) -> Result<Field, AccessError> {
        let made = wire.signature.field(index, &self.block(wire, index)?);
        match &self.rules.memory {
            Some(memory) if self.rules.copy != 0 => {
                Ok(self.merged(wire, made, &self.read_field(memory, index)?))
            }
            _ => Ok(made),
        }
    }

    /// A piece of the field that came behind block `index`.
    fn incoming(&self, wire: &SignatureDomain, index: u64, within: usize, bytes: &[u8]) -> Done {
        let len = wire.signature.len();
        let Some(found) = self.ledger.collect(index, within, bytes, len) else { return Ok(()) };
        self.check(wire, index, &found)?;
        match &self.rules.memory {
            Some(memory) if self.rules.copy != 0 => {
                let made = memory.signature.field(index, &self.block(memory, index)?);
                self.write_field(memory, index, &self.merged(memory, made, &found))
            }
            _ => Ok(()),
        }
    }

    /// `made`, but for the bytes that are copied.
    fn merged(&self, domain: &SignatureDomain, mut made: Field, found: &Field) -> Field {
        for at in 0..domain.signature.len() {
            if self.rules.copy & domain.signature.bit(at) != 0 {
                made[at] = found[at];
            }
        }
        made
    }

    fn check(&self, domain: &SignatureDomain, index: u64, found: &Field) -> Done {
        if self.rules.check == 0 || sabotage::on(Sabotage::SkipSignature) {
            return Ok(());
        }
        let block = self.block(domain, index)?;
        if let Some(error) = domain.signature.check(index, &block, found, self.rules.check) {
            self.ledger.report(SignatureError { offset: domain.begin(index), ..error });
            if let Some(alarm) = &self.alarm {
                alarm.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// The data of block `index`.
    fn block(&self, domain: &SignatureDomain, index: u64) -> Result<Block, AccessError> {
        let mut block = Block { bytes: [0; MAX_BLOCK as usize], len: domain.block as usize };
        self.read_data(index * u64::from(domain.block), &mut block.bytes[..block.len])?;
        Ok(block)
    }

    fn read_field(&self, memory: &SignatureDomain, index: u64) -> Result<Field, AccessError> {
        let mut field = Field::default();
        let at = memory.begin(index) + u64::from(memory.block) - self.base;
        self.memory.read(at, &mut field[..memory.signature.len()])?;
        Ok(field)
    }

    fn write_field(&self, memory: &SignatureDomain, index: u64, field: &Field) -> Done {
        let at = memory.begin(index) + u64::from(memory.block) - self.base;
        self.memory.write(at, &field[..memory.signature.len()])
    }

    fn read_data(&self, at: u64, dst: &mut [u8]) -> Done {
        self.for_each_piece(at, dst.len(), |place, part| self.memory.read(place, &mut dst[part]))
    }

    fn write_data(&self, at: u64, src: &[u8]) -> Done {
        self.for_each_piece(at, src.len(), |place, part| self.memory.write(place, &src[part]))
    }

    /// Calls `each` with the pieces of memory that `len` bytes of data from `at` on lie in.
    fn for_each_piece(
        &self,
        at: u64,
        len: usize,
        mut each: impl FnMut(u64, Range<usize>) -> Done,
    ) -> Done {
        let mut done = 0;
        while done < len {
            let here = at + done as u64;
            let most = match &self.rules.memory {
                None => len,
                Some(memory) => (u64::from(memory.block) - here % u64::from(memory.block)) as usize,
            };
            let end = done + most.min(len - done);
            let place = position(&self.rules.memory, here).checked_sub(self.base);
            each(place.ok_or(AccessError::OutOfRange)?, done..end)?;
            done = end;
        }
        Ok(())
    }
}

/// What bytes of the wire are.
enum Run<'a> {
    /// Data, from this byte of it on.
    Data(u64),
    /// Of the field behind a block, from this byte of it on.
    Field(&'a SignatureDomain, u64, usize),
}

/// The data of one block.
struct Block {
    bytes: [u8; MAX_BLOCK as usize],
    len: usize,
}

impl std::ops::Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}
