//! Indirect MKEYs (access mode KLMS): a key over parts of other keys, which a send request lays out.
//!
//! A key begins free. A request on a reliable connection of its domain gives it rights and a layout, and again at will;
//! an invalidate makes it free. Its addresses begin at 0. What lies below is looked up and checked at each access, as the
//! device does with every entry, so a region that ends takes its part of the key with it.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::key::{Entry, KeyError, KeyTable, MemRef, PdId, Slots, append};
use crate::pd::{Belonging, Pd};
use crate::sabotage::{self, Sabotage};
use crate::signature::{BlockSignature, Ledger, SignatureError, Signed};
use crate::types::{Access, Sge};
use std::ops::Range;
use std::sync::Arc;

/// Entries that one key may have.
pub const MAX_KEY_ENTRIES: u16 = 1024;
/// Keys below one another that an access follows.
const MAX_DEPTH: u32 = 4;
/// Pieces of memory that one access may fall into.
const MAX_PIECES: usize = 1 << 16;

/// A run of bytes that repeats at equal distances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stride {
    /// Address of the first byte, as `lkey` counts.
    pub addr: u64,
    /// Bytes of each run.
    pub bytes: u32,
    /// Bytes between one and the next.
    pub skip: u32,
    /// Local key.
    pub lkey: u32,
}

/// Where the bytes of a key are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeyLayout {
    /// One part after the other.
    List(Vec<Sge>),
    /// One run of each stride in turn, and that `repeat` times.
    Interleaved {
        /// How often.
        repeat: u32,
        /// The strides.
        strides: Vec<Stride>,
    },
}

/// What becomes of a key's block signatures.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum SignatureChange {
    /// They stay.
    #[default]
    Keep,
    /// It has none.
    Reset,
    /// It has these.
    Set(Arc<BlockSignature>),
}

/// What an indirect key is made from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct IndirectInit {
    /// Entries that it has room for.
    pub max_entries: u16,
    /// Peers may invalidate it.
    pub remote_invalidate: bool,
    /// It may have block signatures.
    pub signatures: bool,
}

/// What a send request makes of a key; `None` leaves it as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyConfig {
    /// The key.
    pub key: u32,
    /// Rights (`enum ibv_access_flags`).
    pub access: Option<u32>,
    /// Where its bytes are.
    pub layout: Option<KeyLayout>,
    /// Its block signatures.
    pub signature: SignatureChange,
}

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
    pub(crate) pd: PdId,
    init: IndirectInit,
    access: Access,
    layout: Option<KeyLayout>,
    signature: Option<Signed>,
    /// What checks of its signatures found, those that it had before as well.
    ledger: Arc<Ledger>,
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

    fn configure(
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
    fn len(&self) -> u64 {
        self.layout.as_ref().map_or(0, KeyLayout::len)
    }
}

/// Bytes of a key that an access names.
#[derive(Clone, Copy)]
pub(crate) enum Span {
    /// Address and length of a local request.
    Local(u64, u64),
    /// Those of a request that came over the wire.
    Wire(u64, u64),
    /// All.
    Whole,
}

impl Span {
    /// Whether a request of this side names it.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Span::Local(..))
    }

    /// Address and length, unless it is all.
    pub(crate) fn part(self) -> Option<(u64, u64)> {
        match self {
            Span::Local(va, len) | Span::Wire(va, len) => Some((va, len)),
            Span::Whole => None,
        }
    }
}

/// One part of a key that an access falls into.
struct Part {
    lkey: u32,
    addr: u64,
    len: u64,
}

impl KeyLayout {
    /// Its bytes.
    pub fn len(&self) -> u64 {
        match self {
            KeyLayout::List(parts) => parts.iter().map(|part| u64::from(part.length)).sum(),
            // Less than 2^32 runs of less than 2^32 bytes, of at most MAX_KEY_ENTRIES strides.
            KeyLayout::Interleaved { repeat, strides } => strides
                .iter()
                .map(|s| u64::from(s.bytes))
                .sum::<u64>()
                .saturating_mul((*repeat).into()),
        }
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn entries(&self) -> usize {
        match self {
            KeyLayout::List(parts) => parts.len(),
            KeyLayout::Interleaved { strides, .. } => strides.len(),
        }
    }

    /// Calls `each` with the parts that `len` bytes from `va` on fall into, in order.
    fn parts(
        &self,
        va: u64,
        len: u64,
        each: impl FnMut(Part) -> std::result::Result<(), KeyError>,
    ) -> std::result::Result<(), KeyError> {
        let end = va.checked_add(len).ok_or(KeyError::Range)?;
        match self {
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

impl Slots {
    /// Checks an access to an indirect key and to the keys below it.
    pub(crate) fn resolve_indirect(
        &self,
        key: u32,
        indirect: &Indirect,
        pd: PdId,
        span: Span,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        let gather = |va, len| {
            let mut pieces = Vec::new();
            self.gather(indirect, pd, (va, len), access, MAX_DEPTH, &mut pieces)?;
            Ok(MemRef::of(pieces))
        };
        match (span.part(), &indirect.signature) {
            (None, _) => gather(0, indirect.len()),
            (Some((va, len)), None) => gather(va, len),
            (Some((va, len)), Some(signed)) => {
                let on_wire = signed.range(va, len, span.is_local())?;
                signed.resolve(key, on_wire, indirect.len(), gather)
            }
        }
    }

    fn gather(
        &self,
        indirect: &Indirect,
        pd: PdId,
        (va, len): (u64, u64),
        access: Access,
        depth: u32,
        pieces: &mut Vec<(u64, MemRef)>,
    ) -> std::result::Result<(), KeyError> {
        if indirect.pd != pd && !sabotage::on(Sabotage::SkipPdCheck) {
            return Err(KeyError::ForeignPd);
        }
        let layout = indirect.layout.as_ref().ok_or(KeyError::NotBound)?;
        if !indirect.access.contains(access) && !sabotage::on(Sabotage::SkipKeyAccess) {
            return Err(KeyError::Denied);
        }
        let depth = depth.checked_sub(1).ok_or(KeyError::Denied)?;
        // Of what lies below only the rights of this side count.
        let writes =
            access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let below = if writes { Access::LOCAL_WRITE } else { Access::empty() };
        layout.parts(va, len, |Part { lkey, addr, len }| {
            if pieces.len() >= MAX_PIECES {
                return Err(KeyError::Range);
            }
            match self.find(lkey) {
                // What lies behind its blocks has no place in the key above.
                Some(Entry::Region { mkey, .. }) if mkey.signed.is_some() => Err(KeyError::Denied),
                Some(Entry::Region { mkey, .. }) => {
                    append(pieces, mkey.resolve(pd, addr, len, below)?)
                }
                Some(Entry::Crossing(crossing)) => {
                    append(pieces, self.resolve_crossing(crossing, pd, addr, len, below)?)
                }
                Some(Entry::Indirect(nested)) if nested.signature.is_some() => {
                    Err(KeyError::Denied)
                }
                Some(Entry::Indirect(nested)) => {
                    self.gather(nested, pd, (addr, len), below, depth, pieces)
                }
                _ => Err(KeyError::Unknown),
            }
        })
    }
}

impl KeyTable {
    /// A new key that is free.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the device has no key left.
    pub fn insert_indirect(&self, pd: PdId, init: IndirectInit) -> Result<u32> {
        let (access, layout, signature) = (Access::empty(), None, None);
        let ledger = Arc::default();
        self.install(Entry::Indirect(Indirect { pd, init, access, layout, signature, ledger }))
    }

    /// What the checks of a key's block signatures found first since this was last called (mlx5dv_mkey_check(3)).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key that was not made for them.
    pub fn signature_error(&self, key: u32) -> Result<Option<SignatureError>> {
        match self.read().find(key) {
            Some(Entry::Indirect(indirect)) if indirect.init.signatures => {
                Ok(indirect.ledger.take())
            }
            _ => Err(Error::Invalid("the key was not made for block signatures")),
        }
    }

    /// Ends a key of [`KeyTable::insert_indirect`]. Accesses that were checked go on in the regions below.
    pub fn remove_indirect(&self, key: u32) {
        let mut table = self.write();
        if matches!(table.find(key), Some(Entry::Indirect(_))) {
            drop(table.take(key));
        }
    }

    /// Gives a key rights and a layout on behalf of a queue pair in domain `pd`.
    ///
    /// # Errors
    /// [`ConfigureError`]; nothing has changed then.
    pub fn configure(
        &self,
        pd: PdId,
        config: &KeyConfig,
    ) -> std::result::Result<(), ConfigureError> {
        match self.write().find_mut(config.key) {
            Some(Entry::Indirect(indirect)) => indirect.configure(pd, config),
            _ => Err(ConfigureError::Key),
        }
    }
}

/// An indirect key. Dropping it ends it.
pub struct IndirectKey {
    device: Arc<Device>,
    key: u32,
    init: IndirectInit,
    _pd: Belonging,
}

impl std::fmt::Debug for IndirectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IndirectKey {{ key: {:#x} }}", self.key)
    }
}

impl IndirectKey {
    /// lkey and rkey.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// What it was made from.
    pub fn init(&self) -> &IndirectInit {
        &self.init
    }

    /// [`KeyTable::signature_error`] of it.
    ///
    /// # Errors
    /// As there.
    pub fn signature_error(&self) -> Result<Option<SignatureError>> {
        self.device.keys().signature_error(self.key)
    }
}

impl Drop for IndirectKey {
    fn drop(&mut self) {
        self.device.keys().remove_indirect(self.key);
    }
}

impl Device {
    /// An indirect key that is free.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more entries than [`MAX_KEY_ENTRIES`], [`Error::NoMemory`] when no key is left.
    pub fn create_indirect_key(
        &self,
        pd: &Arc<Pd>,
        init: IndirectInit,
    ) -> Result<Arc<IndirectKey>> {
        self.alive()?;
        if init.max_entries > MAX_KEY_ENTRIES {
            return Err(Error::Invalid("more entries than an indirect key may have"));
        }
        let device = self.arc()?;
        let key = self.keys().insert_indirect(pd.id(), init)?;
        Ok(Arc::new(IndirectKey { device, key, init, _pd: Belonging::new(pd) }))
    }
}
