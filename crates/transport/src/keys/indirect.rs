//! Indirect keys in the key table.

use super::rights::KeyError;
use super::signed::{Ledger, Signed};
use crate::values::PdId;
use crate::values::{Access, IndirectInit, KeyConfig, KeyLayout, SignatureChange, Stride};
use std::ops::Range;
use std::sync::Arc;

/// Why a key is not configured (completion status MW_BIND_ERR).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigureError {
    /// There is no such key, or it belongs to another protection domain.
    #[error("no such indirect key in the queue pair's protection domain")]
    Key,
    /// Rights that the device does not know, or that need others.
    #[error("the key cannot have these rights")]
    Rights,
    /// The layout has more entries than the key was made for.
    #[error("more entries than the key has room for")]
    Entries,
    /// Block signatures for a key that was not made for them, or over 2^32 bytes and more.
    #[error("the key cannot have block signatures")]
    Signature,
}

/// An indirect key in the key table.
pub(crate) struct Indirect {
    pub(super) pd: PdId,
    pub(super) init: IndirectInit,
    pub(super) access: Access,
    /// How often its strides repeat; `None` while it is free.
    pub(super) repeat: Option<u32>,
    /// Where its bytes are; with room for all the entries that it may have.
    pub(super) strides: Vec<Stride>,
    pub(super) signature: Option<Signed>,
    /// What checks of its signatures found, those that it had before as well.
    pub(super) ledger: Arc<Ledger>,
}

impl Indirect {
    /// Takes its layout away: it is free then.
    pub(crate) fn invalidate(
        &mut self,
        pd: PdId,
        by_peer: bool,
    ) -> std::result::Result<(), KeyError> {
        if self.pd != pd {
            return Err(KeyError::ForeignPd);
        }
        if by_peer && !self.init.remote_invalidate {
            return Err(KeyError::Denied);
        }
        self.repeat = None;
        self.signature = None;
        Ok(())
    }

    pub(super) fn configure(
        &mut self,
        pd: PdId,
        config: &KeyConfig,
    ) -> std::result::Result<(), ConfigureError> {
        if self.pd != pd {
            return Err(ConfigureError::Key);
        }
        let access = match config.access {
            None => self.access,
            Some(bits) => Access::from_bits(bits).ok_or(ConfigureError::Rights)?,
        };
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if writes && !access.contains(Access::LOCAL_WRITE) {
            return Err(ConfigureError::Rights);
        }
        if config
            .layout
            .as_ref()
            .is_some_and(|layout| layout.entries() > self.init.max_entries.into())
        {
            return Err(ConfigureError::Entries);
        }
        let signature = match &config.signature {
            SignatureChange::Keep => self.signature.clone(),
            SignatureChange::Reset => None,
            SignatureChange::Set(rules) => Some(Signed::noting(*rules, &self.ledger)),
        };
        let len = config.layout.as_ref().map_or_else(|| self.len(), KeyLayout::len);
        let long = len > u32::MAX.into();
        if signature.is_some() && (long || !self.init.signatures) {
            return Err(ConfigureError::Signature);
        }
        if let Some(layout) = &config.layout {
            let (repeat, strides) = layout.strides();
            self.repeat = Some(repeat);
            self.strides.clear();
            self.strides.extend(strides);
        }
        self.signature = signature;
        self.access = access;
        Ok(())
    }

    /// Its bytes in memory.
    pub(super) fn len(&self) -> u64 {
        // Less than 2^32 runs of less than 2^32 bytes, of at most MAX_KEY_ENTRIES strides.
        self.bytes_of_a_turn().saturating_mul(self.repeat.unwrap_or(0).into())
    }

    fn bytes_of_a_turn(&self) -> u64 {
        self.strides.iter().map(|stride| u64::from(stride.bytes)).sum()
    }

    /// Calls `each` with the parts that `len` bytes from `va` on fall into, in order.
    pub(super) fn parts(
        &self,
        va: u64,
        len: u64,
        each: impl FnMut(Part) -> std::result::Result<(), KeyError>,
    ) -> std::result::Result<(), KeyError> {
        let repeat = u64::from(self.repeat.ok_or(KeyError::NotBound)?);
        let end = va.checked_add(len).ok_or(KeyError::Range)?;
        let turn = self.bytes_of_a_turn();
        // Turns before the first byte that is meant are not walked through.
        let skipped = va.checked_div(turn).unwrap_or(0).min(repeat);
        let wanted = va - skipped * turn..end - skipped * turn;
        interleaved(&self.strides, skipped..repeat, wanted, each)
    }
}

/// One part of a key that an access falls into.
pub(super) struct Part {
    pub(super) lkey: u32,
    pub(super) addr: u64,
    pub(super) len: u64,
}

/// The parts of `turns` of the strides that `wanted` falls into; its numbers count from the first
/// of these turns.
fn interleaved(
    strides: &[Stride],
    turns: Range<u64>,
    wanted: Range<u64>,
    mut each: impl FnMut(Part) -> std::result::Result<(), KeyError>,
) -> std::result::Result<(), KeyError> {
    let mut at = 0u64;
    if wanted.is_empty() {
        return Ok(());
    }
    if strides.iter().all(|stride| stride.bytes == 0) {
        return Err(KeyError::Range);
    }
    for turn in turns {
        for stride in strides {
            let bytes = u64::from(stride.bytes);
            let end = at.saturating_add(bytes);
            let (first, last) = (at.max(wanted.start), end.min(wanted.end));
            if first < last {
                let distance = turn
                    .checked_mul(bytes + u64::from(stride.skip))
                    .and_then(|distance| distance.checked_add(first - at));
                let addr = distance.and_then(|distance| stride.addr.checked_add(distance));
                let addr = addr.ok_or(KeyError::Range)?;
                each(Part { lkey: stride.lkey, addr, len: last - first })?;
            }
            at = end;
            if at >= wanted.end {
                return Ok(());
            }
        }
    }
    Err(KeyError::Range)
}
