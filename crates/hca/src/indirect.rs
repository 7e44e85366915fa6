//! Indirect MKEYs (access mode KLMS): a key over parts of other keys, which a send request lays out.
//!
//! A key begins free. A request on a reliable connection of its domain gives it rights and a layout, and again at will;
//! an invalidate makes it free. Its addresses begin at 0. What lies below is looked up and checked at each access, as the
//! device does with every entry, so a region that ends takes its part of the key with it.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::key::{Entry, KeyError, KeyTable, MemRef, PdId, Slots};
use crate::pd::{Belonging, Pd};
use crate::sabotage::{self, Sabotage};
use crate::types::{Access, Sge};
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

/// What a send request makes of a key; `None` leaves it as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyConfig {
    /// The key.
    pub key: u32,
    /// Rights (`enum ibv_access_flags`).
    pub access: Option<u32>,
    /// Where its bytes are.
    pub layout: Option<KeyLayout>,
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
}

/// An indirect key in the key table.
pub(crate) struct Indirect {
    pub(crate) pd: PdId,
    max_entries: u16,
    /// Whether peers may invalidate it.
    remote_invalidate: bool,
    access: Access,
    layout: Option<KeyLayout>,
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
        if by_peer && !self.remote_invalidate {
            return Err(KeyError::Denied);
        }
        self.layout = None;
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
        if let Some(layout) = &config.layout {
            let entries = match layout {
                KeyLayout::List(parts) => parts.len(),
                KeyLayout::Interleaved { strides, .. } => strides.len(),
            };
            if entries > self.max_entries.into() {
                return Err(ConfigureError::Entries);
            }
            self.layout = Some(layout.clone());
        }
        self.access = access;
        Ok(())
    }

    fn len(&self) -> u64 {
        match &self.layout {
            None => 0,
            Some(KeyLayout::List(parts)) => parts.iter().map(|part| u64::from(part.length)).sum(),
            // Less than 2^32 runs of less than 2^32 bytes, of at most MAX_KEY_ENTRIES strides.
            Some(KeyLayout::Interleaved { repeat, strides }) => strides
                .iter()
                .map(|s| u64::from(s.bytes))
                .sum::<u64>()
                .saturating_mul((*repeat).into()),
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
    turns: std::ops::Range<u64>,
    wanted: std::ops::Range<u64>,
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
        indirect: &Indirect,
        pd: PdId,
        (va, len): (u64, u64),
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        let mut pieces = Vec::new();
        self.gather(indirect, pd, (va, len), access, MAX_DEPTH, &mut pieces)?;
        Ok(MemRef::of(pieces))
    }

    /// The same for all of it.
    pub(crate) fn resolve_whole_indirect(
        &self,
        indirect: &Indirect,
        pd: PdId,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        self.resolve_indirect(indirect, pd, (0, indirect.len()), access)
    }

    fn gather(
        &self,
        indirect: &Indirect,
        pd: PdId,
        (va, len): (u64, u64),
        access: Access,
        depth: u32,
        pieces: &mut Vec<MemRef>,
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
                Some(Entry::Region { mkey, .. }) => {
                    pieces.push(mkey.resolve(pd, addr, len, below)?);
                    Ok(())
                }
                Some(Entry::Crossing(crossing)) => {
                    pieces.push(self.resolve_crossing(crossing, pd, addr, len, below)?);
                    Ok(())
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
    /// A new key that is free, with room for `max_entries`. Peers may invalidate it if `remote_invalidate` says so.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the device has no key left.
    pub fn insert_indirect(
        &self,
        pd: PdId,
        max_entries: u16,
        remote_invalidate: bool,
    ) -> Result<u32> {
        let (access, layout) = (Access::empty(), None);
        let indirect = Indirect { pd, max_entries, remote_invalidate, access, layout };
        self.install(Entry::Indirect(indirect))
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
}

impl Drop for IndirectKey {
    fn drop(&mut self) {
        self.device.keys().remove_indirect(self.key);
    }
}

impl Device {
    /// An indirect key that is free, with room for `max_entries`. Peers may invalidate it if `remote_invalidate` says so.
    ///
    /// # Errors
    /// [`Error::Invalid`] for more entries than [`MAX_KEY_ENTRIES`], [`Error::NoMemory`] when no key is left.
    pub fn create_indirect_key(
        &self,
        pd: &Arc<Pd>,
        max_entries: u16,
        remote_invalidate: bool,
    ) -> Result<Arc<IndirectKey>> {
        self.alive()?;
        if max_entries > MAX_KEY_ENTRIES {
            return Err(Error::Invalid("more entries than an indirect key may have"));
        }
        let device = self.arc()?;
        let key = self.keys().insert_indirect(pd.id(), max_entries, remote_invalidate)?;
        Ok(Arc::new(IndirectKey { device, key, _pd: Belonging::new(pd) }))
    }
}
