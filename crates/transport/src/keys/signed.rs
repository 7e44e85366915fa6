//! Block signatures that keys have, and what their checks find.

use super::mem_ref::MemRef;
use super::rights::KeyError;
use super::signed_memory::SignedMemory;
use crate::signature::{BlockSignature, Field, Signature, SignatureError};
use engine_thread::lock;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// No byte of a key with signatures has a higher address.
pub(crate) const MAX_ADDRESS: u64 = 1 << 40;

/// Fields of which only a part has come, in one key.
const MAX_PARTS: usize = 16;

/// A check that failed, as it is reported at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadSignature {
    /// The key whose blocks were checked.
    pub key: u32,
    /// The fields that came over the wire were checked, not those in memory.
    pub on_wire: bool,
    /// What such a field is.
    pub signature: Signature,
    /// What is wrong.
    pub error: SignatureError,
}

/// Hears of checks that fail.
pub trait SignatureSink: Send + Sync {
    /// A check failed, on behalf of a send request or, if `received`, of what came from the peer.
    /// Only the first one of a key is reported, until somebody takes note of it ([`Signed::take`]).
    /// Called under a queue pair's lock.
    fn bad_signature(&self, found: &BadSignature, received: bool);
}

/// Block signatures that a key has, and what their checks found.
#[derive(Clone, Debug)]
pub struct Signed {
    pub(super) rules: BlockSignature,
    pub(super) ledger: Arc<Ledger>,
}

impl Signed {
    /// These signatures, of which no check has failed.
    pub fn new(rules: BlockSignature) -> Signed {
        Signed { rules, ledger: Arc::default() }
    }

    /// The same, which notes what it finds in `ledger`.
    pub(crate) fn noting(rules: BlockSignature, ledger: &Arc<Ledger>) -> Signed {
        Signed { rules, ledger: ledger.clone() }
    }

    /// What was found first since this was last called.
    pub fn take(&self) -> Option<SignatureError> {
        self.ledger.take()
    }

    /// The bytes on the wire that an access to `len` bytes from `va` on means, which counts as the
    /// wire does unless it is a `local` request's.
    pub(crate) fn range(
        &self,
        va: u64,
        len: u64,
        local: bool,
    ) -> std::result::Result<Range<u64>, KeyError> {
        let end = va.checked_add(len).filter(|end| *end <= MAX_ADDRESS);
        let range = va..end.ok_or(KeyError::Range)?;
        Ok(if local { self.rules.on_wire(range) } else { range })
    }

    /// Checks an access to the bytes `on_wire` of `key`, which has `len` bytes in memory: all that
    /// lies below the blocks around them. `memory` gives an address and a length of it.
    pub(crate) fn resolve(
        &self,
        key: u32,
        on_wire: Range<u64>,
        len: u64,
        memory: impl FnOnce(u64, u64) -> std::result::Result<MemRef, KeyError>,
    ) -> std::result::Result<MemRef, KeyError> {
        let (needed, blocks) = self.rules.in_memory(&on_wire);
        if needed.end > len {
            return Err(KeyError::Range);
        }
        let end = blocks.end.min(len);
        let memory = memory(blocks.start, end - blocks.start)?;
        let memory = SignedMemory::new(key, self.clone(), memory, blocks.start);
        MemRef::signed(memory, on_wire.start, on_wire.end - on_wire.start)
    }
}

/// What a key remembers of its checks.
#[derive(Default, Debug)]
pub(crate) struct Ledger(Mutex<Entries>);

#[derive(Default, Debug)]
struct Entries {
    first: Option<SignatureError>,
    /// They lie in place, so that a packet never has to ask for memory.
    parts: SmallVec<[Part; MAX_PARTS]>,
}

/// A field of which the first bytes have come.
#[derive(Debug)]
struct Part {
    index: u64,
    field: Field,
    filled: usize,
}

impl Ledger {
    fn entries(&self) -> MutexGuard<'_, Entries> {
        lock(&self.0)
    }

    /// Keeps the first error until it is taken; whether it is this one.
    pub(super) fn report(&self, error: SignatureError) -> bool {
        let mut entries = self.entries();
        let first = entries.first.is_none();
        entries.first.get_or_insert(error);
        first
    }

    /// The first error since it was last asked for.
    pub(crate) fn take(&self) -> Option<SignatureError> {
        self.entries().first.take()
    }

    /// Adds `bytes` to what has come of the field behind block `index`; gives the field once all
    /// `len` bytes are there. They come in order, but fields of several requests may be under way.
    pub(super) fn collect(&self, index: u64, at: usize, bytes: &[u8], len: usize) -> Option<Field> {
        let mut field = Field::default();
        let end = at + bytes.len();
        let parts = &mut self.entries().parts;
        if at == 0 {
            parts.retain(|part| part.index != index);
        } else {
            let found = parts.iter().position(|part| part.index == index && part.filled == at)?;
            field = parts.swap_remove(found).field;
        }
        field.get_mut(at..end)?.copy_from_slice(bytes);
        if end == len {
            return Some(field);
        }
        if parts.len() == MAX_PARTS {
            parts.remove(0);
        }
        parts.push(Part { index, field, filled: end });
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::SignatureFault;

    #[test]
    fn fields_come_in_pieces_and_of_several_requests() {
        let ledger = Ledger::default();
        assert_eq!(ledger.collect(0, 0, &[1, 2, 3, 4], 4), Some([1, 2, 3, 4, 0, 0, 0, 0]));
        assert_eq!(ledger.collect(5, 0, &[1], 4), None);
        assert_eq!(ledger.collect(9, 0, &[8, 8], 4), None);
        assert_eq!(ledger.collect(5, 1, &[2, 3], 4), None);
        // One that comes anew does not stand on what came before.
        assert_eq!(ledger.collect(9, 0, &[9, 9], 4), None);
        assert_eq!(ledger.collect(5, 3, &[4], 4), Some([1, 2, 3, 4, 0, 0, 0, 0]));
        assert_eq!(ledger.collect(9, 2, &[9, 9], 4), Some([9, 9, 9, 9, 0, 0, 0, 0]));
        // Nor does one whose beginning never came.
        assert_eq!(ledger.collect(9, 2, &[9, 9], 4), None);
        for index in 0..100 {
            assert_eq!(ledger.collect(index, 0, &[1], 4), None);
        }
        assert_eq!(ledger.collect(0, 1, &[1, 1, 1], 4), None);
        assert_eq!(ledger.entries().parts.len(), MAX_PARTS);
        assert!(ledger.collect(99, 1, &[1, 1, 1], 4).is_some());
    }

    #[test]
    fn the_first_error_stays_until_it_is_taken() {
        let ledger = Ledger::default();
        let error = |offset| SignatureError {
            fault: SignatureFault::Guard,
            actual: 1,
            expected: 2,
            offset,
        };
        assert!(ledger.report(error(0)));
        assert!(!ledger.report(error(512)));
        assert_eq!(ledger.take(), Some(error(0)));
        assert_eq!(ledger.take(), None);
    }
}
