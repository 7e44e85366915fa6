//! Block signatures: integrity fields behind every block of data, as
//! mlx5dv_wr_set_mkey_sig_block(3) describes them.
//!
//! A key with signatures knows two domains: how its bytes lie in memory, and how they pass on the
//! wire. Either may have a field behind each block, of a kind and a block size of its own. What
//! goes from one to the other is checked where it comes from and generated, copied or left out
//! where it goes. A block that is not complete has no field.
//!
//! Bytes are counted in one of three ways: as data alone, as they lie in memory, and as they pass
//! on the wire. Block 0 begins at the key's address 0, wherever a transfer begins, so a peer may
//! move a key's bytes in as many requests as it likes.

mod domain;
mod field;
mod guard;

pub use domain::{MAX_BLOCK, SignatureDomain};
pub(crate) use domain::{data, position};
pub(crate) use field::Field;
pub use field::{Escape, Signature, SignatureError, SignatureFault, T10Dif};
pub use guard::{GuardKind, guard};

use crate::error::{Error, Result};
use std::ops::Range;

/// The signatures of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockSignature {
    pub(crate) memory: Option<SignatureDomain>,
    pub(crate) wire: Option<SignatureDomain>,
    /// Bytes of an incoming field that are checked: a bit for each, as [`Signature::bit`] says.
    pub(crate) check: u8,
    /// Bytes of an outgoing field that are taken from the incoming one.
    pub(crate) copy: u8,
}

impl BlockSignature {
    /// The signatures of a key in memory and on the wire. `check` names the bytes of incoming
    /// fields that are checked; `copy` those of outgoing ones that are copied, which are all that
    /// would not change if it is left to us.
    ///
    /// # Errors
    /// [`Error::Invalid`] without any domain, for a domain that cannot be, and for a copy between
    /// different fields.
    pub fn new(
        memory: Option<SignatureDomain>,
        wire: Option<SignatureDomain>,
        check: u8,
        copy: Option<u8>,
    ) -> Result<BlockSignature> {
        if memory.is_none() && wire.is_none() {
            return Err(Error::Invalid("a signature needs a domain"));
        }
        memory.iter().chain(&wire).try_for_each(SignatureDomain::check_values)?;
        let same = match (&memory, &wire) {
            (Some(a), Some(b)) if a.block == b.block && a.signature.resembles(&b.signature) => {
                Some(a.signature.common(&b.signature))
            }
            _ => None,
        };
        let copy = match (same, copy) {
            (None, Some(_)) => {
                return Err(Error::Invalid("fields that differ in size or type cannot be copied"));
            }
            (same, copy) => copy.or(same).unwrap_or(0),
        };
        Ok(BlockSignature { memory, wire, check, copy })
    }

    /// The bytes on the wire that stand for those from `local.start` to `local.end` of a local
    /// request. That counts as the wire does where no fields are there, and else as memory does
    /// (Linux `rdma_rw_ctx_signature_init`).
    pub(crate) fn on_wire(&self, local: Range<u64>) -> Range<u64> {
        match (&self.memory, &self.wire) {
            (_, None) => local,
            (Some(memory), Some(wire))
                if memory.block == wire.block && memory.stride() == wire.stride() =>
            {
                local
            }
            (memory, Some(wire)) => {
                let place = |at| wire.position(data(memory, at));
                place(local.start)..place(local.end)
            }
        }
    }

    /// The bytes of memory that must be there for bytes on the wire, and those that may be looked
    /// at: whole blocks.
    pub(crate) fn in_memory(&self, on_wire: &Range<u64>) -> (Range<u64>, Range<u64>) {
        let needed = data(&self.wire, on_wire.start)..data(&self.wire, on_wire.end);
        let wire_blocks = match &self.wire {
            Some(wire) => wire.touched(on_wire),
            None => needed.clone(),
        };
        let blocks = self.memory.map_or(wire_blocks.clone(), |memory| memory.around(wire_blocks));
        let place =
            |data: Range<u64>| position(&self.memory, data.start)..position(&self.memory, data.end);
        (place(needed), place(blocks))
    }
}

#[cfg(test)]
mod tests;
