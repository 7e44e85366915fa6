//! The memory of a key with signatures, as the wire sees it.
//!
//! Reads give what passes on the wire and check the fields that lie in memory; writes take what
//! comes from it, check its fields and lay those of memory. Nothing is kept from one packet to the
//! next but fields of which a part has come: a block's guard is calculated from memory when its
//! last byte was moved, so packets may be repeated, and a key's bytes may come in several requests.

use super::mem_ref::MemRef;
use super::rights::KeyError;
use super::signed::{BadSignature, SignatureSink, Signed};
use crate::sabotage::{self, Sabotage};
use crate::signature::{Field, MAX_BLOCK, SignatureDomain, SignatureError, data, position};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use umem::AccessError;

type Done = Result<(), AccessError>;

/// What one side of a queue pair hears of checks that fail.
#[derive(Default)]
pub(crate) struct Watcher {
    rung: AtomicBool,
    sink: Option<(Arc<dyn SignatureSink>, bool)>,
}

/// A [`Watcher`] shared with the memory that its requests use.
pub(crate) type Alarm = Arc<Watcher>;

impl Watcher {
    /// Tells `sink` of each key's first failure; `received` says which side it is.
    pub(crate) fn telling(sink: Arc<dyn SignatureSink>, received: bool) -> Alarm {
        Arc::new(Watcher { rung: AtomicBool::new(false), sink: Some((sink, received)) })
    }

    /// Whether a check has failed.
    pub(crate) fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Relaxed)
    }

    /// Forgets the checks that have failed.
    pub(crate) fn silence(&self) {
        self.rung.store(false, Ordering::Relaxed);
    }

    fn ring(&self, news: Option<BadSignature>) {
        self.rung.store(true, Ordering::Relaxed);
        if let (Some((sink, received)), Some(found)) = (&self.sink, news) {
            sink.bad_signature(&found, *received);
        }
    }
}

pub(crate) struct SignedMemory {
    key: u32,
    signed: Signed,
    /// Whole blocks.
    memory: MemRef,
    /// Where in the key `memory` begins.
    base: u64,
    alarm: Option<Alarm>,
}

impl SignedMemory {
    /// The memory of `key`.
    pub(crate) fn new(key: u32, signed: Signed, memory: MemRef, base: u64) -> SignedMemory {
        SignedMemory { key, signed, memory, base, alarm: None }
    }

    /// A second reference to the same memory.
    ///
    /// # Errors
    /// [`KeyError::NoMemory`].
    pub(crate) fn try_clone(&self) -> Result<SignedMemory, KeyError> {
        let (signed, alarm) = (self.signed.clone(), self.alarm.clone());
        let memory = self.memory.try_clone()?;
        Ok(SignedMemory { key: self.key, signed, memory, base: self.base, alarm })
    }

    /// Rings `alarm` as well when a check fails.
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
        let Some(memory) = &self.signed.rules.memory else { return Ok(()) };
        let moved = data(&self.signed.rules.wire, at)..data(&self.signed.rules.wire, end);
        for index in memory.completed(&moved) {
            let found = self.read_field(memory, index)?;
            self.check(memory, false, index, &found)?;
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
        let Some(memory) = self.signed.rules.memory.filter(|_| self.signed.rules.copy == 0) else {
            return Ok(());
        };
        let moved = data(&self.signed.rules.wire, at)..data(&self.signed.rules.wire, end);
        for index in memory.completed(&moved) {
            let field = memory.signature.field(index, &self.block(&memory, index)?);
            self.write_field(&memory, index, &field)?;
        }
        Ok(())
    }

    /// Whether an access could be served now, or fails now.
    pub(crate) fn is_ready(&self, at: u64, len: usize, write: bool) -> bool {
        let (needed, _) = self.signed.rules.in_memory(&(at..at + len as u64));
        let len = usize::try_from(needed.end - needed.start).unwrap_or(usize::MAX);
        self.memory.is_ready(needed.start - self.base, len, write)
    }

    /// Calls `each` with the runs of data and the fields that `len` bytes of the wire from `at` on
    /// fall into.
    fn for_each_run(
        &self,
        at: u64,
        len: usize,
        mut each: impl FnMut(Run<'_>, Range<usize>) -> Done,
    ) -> Done {
        let mut done = 0;
        while done < len {
            let here = at + done as u64;
            let (run, most) = match &self.signed.rules.wire {
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
        match &self.signed.rules.memory {
            Some(memory) if self.signed.rules.copy != 0 => {
                Ok(self.merged(wire, made, &self.read_field(memory, index)?))
            }
            _ => Ok(made),
        }
    }

    /// A piece of the field that came behind block `index`.
    fn incoming(&self, wire: &SignatureDomain, index: u64, within: usize, bytes: &[u8]) -> Done {
        let len = wire.signature.len();
        let Some(found) = self.signed.ledger.collect(index, within, bytes, len) else {
            return Ok(());
        };
        self.check(wire, true, index, &found)?;
        match &self.signed.rules.memory {
            Some(memory) if self.signed.rules.copy != 0 => {
                let made = memory.signature.field(index, &self.block(memory, index)?);
                self.write_field(memory, index, &self.merged(memory, made, &found))
            }
            _ => Ok(()),
        }
    }

    /// `made`, but for the bytes that are copied.
    fn merged(&self, domain: &SignatureDomain, mut made: Field, found: &Field) -> Field {
        for at in 0..domain.signature.len() {
            if self.signed.rules.copy & domain.signature.bit(at) != 0 {
                made[at] = found[at];
            }
        }
        made
    }

    fn check(&self, domain: &SignatureDomain, on_wire: bool, index: u64, found: &Field) -> Done {
        if self.signed.rules.check == 0 || sabotage::on(Sabotage::SkipSignature) {
            return Ok(());
        }
        let block = self.block(domain, index)?;
        if let Some(error) = domain.signature.check(index, &block, found, self.signed.rules.check) {
            let error = SignatureError { offset: domain.begin(index), ..error };
            let (key, signature) = (self.key, domain.signature);
            let found = BadSignature { key, on_wire, signature, error };
            let first = self.signed.ledger.report(error);
            if let Some(alarm) = &self.alarm {
                alarm.ring(first.then_some(found));
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
            let most = match &self.signed.rules.memory {
                None => len,
                Some(memory) => (u64::from(memory.block) - here % u64::from(memory.block)) as usize,
            };
            let end = done + most.min(len - done);
            let place = position(&self.signed.rules.memory, here).checked_sub(self.base);
            each(place.ok_or(AccessError::OutOfRange)?, done..end)?;
            done = end;
        }
        Ok(())
    }
}

/// What a run of bytes on the wire is.
enum Run<'a> {
    /// Data, from this byte of it on.
    Data(u64),
    /// The field behind a block, from this byte of it on.
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
