//! Indirect keys in the key table.

use super::rights::KeyError;
use super::signed::{Ledger, Signed};
use crate::values::PdId;
use crate::values::{Access, IndirectInit, KeyConfig, KeyLayout, Sge, SignatureChange, Stride};
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
    pub(super) layout: Option<KeyLayout>,
    pub(super) signature: Option<Signed>,
    /// What checks of its signatures found, those that it had before as well.
    pub(super) ledger: Arc<Ledger>,
}

impl Indirect {
    /// Makes it free.
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
        self.layout = None;
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
        let layout = config.layout.as_ref().or(self.layout.as_ref());
        let signature = match &config.signature {
            SignatureChange::Keep => self.signature.clone(),
            SignatureChange::Reset => None,
            SignatureChange::Set(rules) => Some(Signed::noting(rules.clone(), &self.ledger)),
        };
        let long = layout.is_some_and(|layout| layout.len() > u32::MAX.into());
        if signature.is_some() && (long || !self.init.signatures) {
            return Err(ConfigureError::Signature);
        }
        (self.layout, self.signature) = (layout.cloned(), signature);
        self.access = access;
        Ok(())
    }

    /// Its bytes in memory.
    pub(super) fn len(&self) -> u64 {
        self.layout.as_ref().map_or(0, KeyLayout::len)
    }
}

/// One part of a key that an access falls into.
pub(super) struct Part {
    pub(super) lkey: u32,
    pub(super) addr: u64,
    pub(super) len: u64,
}

/// Calls `each` with the parts of `layout` that `len` bytes from `va` on fall into, in order.
pub(super) fn parts(
    layout: &KeyLayout,
    va: u64,
    len: u64,
    each: impl FnMut(Part) -> std::result::Result<(), KeyError>,
) -> std::result::Result<(), KeyError> {
    let end = va.checked_add(len).ok_or(KeyError::Range)?;
    match layout {
        KeyLayout::List(parts) => {
            let run = |part: &Sge| Stride {
                addr: part.addr,
                bytes: part.length,
                skip: 0,
                lkey: part.lkey,
            };
            let runs: Vec<Stride> = parts.iter().map(run).collect();
            interleaved(&runs, 0..1, va..end, each)
        }
        KeyLayout::Interleaved { repeat, strides } => {
            let turn: u64 = strides.iter().map(|stride| u64::from(stride.bytes)).sum();
            // Turns before the first byte that is meant are not walked through.
            let skipped = va.checked_div(turn).unwrap_or(0).min((*repeat).into());
            let wanted = va - skipped * turn..end - skipped * turn;
            interleaved(strides, skipped..(*repeat).into(), wanted, each)
        }
    }
}

/// The parts of `turns` of the strides that `wanted` falls into; its numbers count from the first of these turns.
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
