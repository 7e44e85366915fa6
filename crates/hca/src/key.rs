//! The MKEY table: key and rights to a registration. Every check of a key happens in [`KeyTable::resolve`].
//!
//! A key is an 8-bit salt, a 16-bit place and an 8-bit tag. Tags start at random and change with every use of a place, and
//! places are reused as late as possible, so a stale key of an earlier registration, or of a dead process, hits
//! nothing. Salts are random and never 0, so a stranger does not guess a key by counting, even where whoever registers
//! chooses the tag, as the drivers of a guest do.

use crate::data_direct::{Crossing, Ksm, Physical};
use crate::error::{Error, Result};
use crate::indirect::{Indirect, Span};
use crate::mw::Window;
use crate::sabotage::{self, Sabotage};
use crate::signature::Signed;
use crate::signature::memory::{Alarm, SignedMemory};
use crate::types::Access;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use umem::Fold;
use umem::{AccessError, AtomicOp, Umem};

/// Keys that one device can hold: the directory has a place for each.
pub const MAX_KEYS: usize = 1 << 16;

/// Identity of a protection domain within the process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PdId(pub u32);

/// Why a key does not give access (IBA 10.6.3: all are one "access violation" to the peer).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyError {
    /// No such key, or one of an earlier registration.
    #[error("no such key")]
    Unknown,
    /// The key belongs to another protection domain.
    #[error("key of another protection domain")]
    ForeignPd,
    /// The key lacks the right.
    #[error("the key does not grant this access")]
    Denied,
    /// The range leaves the registration.
    #[error("range outside the registration")]
    Range,
    /// A memory window that is not bound, or bound to another QP.
    #[error("memory window not bound to this queue pair")]
    NotBound,
    /// On-demand memory: no page is there for this access.
    #[error("no page is mapped there")]
    Unmapped,
    /// The range lies in many pieces, and there is no memory to remember them.
    #[error("no memory for the pieces that the range lies in")]
    NoMemory,
}

/// A checked range under a key. Holding it keeps the key's memory object, not its mapping: each access enters anew and
/// fails once the key is gone.
#[derive(Clone)]
pub struct MemRef {
    memory: Memory,
    len: u64,
}

/// Where the bytes of a range are.
#[derive(Clone)]
enum Memory {
    /// In one registration, from an offset on.
    One(Arc<Umem>, u64),
    /// In several, each with its place among them, from an offset on.
    Many(Arc<Vec<(u64, MemRef)>>, u64),
    /// Those of a key with signatures, from an address of the wire's on.
    Signed(Arc<SignedMemory>, u64),
}

fn end_of(pieces: &[(u64, MemRef)]) -> u64 {
    pieces.last().map_or(0, |(start, piece)| start + piece.len())
}

/// Adds a range to those before it.
///
/// # Errors
/// [`KeyError::NoMemory`].
pub(crate) fn append(
    pieces: &mut Vec<(u64, MemRef)>,
    piece: MemRef,
) -> std::result::Result<(), KeyError> {
    pieces.try_reserve(1).map_err(|_| KeyError::NoMemory)?;
    pieces.push((end_of(pieces), piece));
    Ok(())
}

impl MemRef {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the range is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies out from `at`, counted from the start of the range.
    pub fn read(&self, at: u64, dst: &mut [u8]) -> std::result::Result<(), AccessError> {
        let offset = self.place(at, dst.len())?;
        match &self.memory {
            Memory::One(umem, _) => umem.read(offset, dst, self.len - at - dst.len() as u64),
            Memory::Many(pieces, _) => for_each(pieces, offset, dst.len(), |piece, at, part| {
                piece.read(at, &mut dst[part])
            }),
            Memory::Signed(signed, _) => signed.read(offset, dst),
        }
    }

    /// As [`read`](MemRef::read), folding the bytes on the way where that can be.
    pub fn read_folding(
        &self,
        at: u64,
        dst: &mut [u8],
        fold: &mut Fold,
    ) -> std::result::Result<(), AccessError> {
        let offset = self.place(at, dst.len())?;
        match &self.memory {
            Memory::One(umem, _) => {
                umem.read_folding(offset, dst, fold, self.len - at - dst.len() as u64)
            }
            Memory::Many(..) | Memory::Signed(..) => {
                *fold = Fold::off();
                self.read(at, dst)
            }
        }
    }

    /// Copies in at `at`.
    pub fn write(&self, at: u64, src: &[u8]) -> std::result::Result<(), AccessError> {
        let offset = self.place(at, src.len())?;
        match &self.memory {
            Memory::One(umem, _) => umem.write(offset, src, self.len - at - src.len() as u64),
            Memory::Many(pieces, _) => {
                for_each(pieces, offset, src.len(), |piece, at, part| piece.write(at, &src[part]))
            }
            Memory::Signed(signed, _) => signed.write(offset, src),
        }
    }

    /// One atomic on the word at the start of the range.
    pub fn atomic(&self, op: AtomicOp) -> std::result::Result<u64, AccessError> {
        let offset = self.place(0, 8)?;
        match &self.memory {
            Memory::One(umem, _) => umem.atomic(offset, op),
            Memory::Many(pieces, _) => {
                let mut found = Err(AccessError::OutOfRange);
                for_each(pieces, offset, 8, |piece, at, part| {
                    // A word that lies in two places cannot change at once.
                    if part.len() == 8 {
                        found = piece.part(at, 8).map_err(|_| AccessError::OutOfRange)?.atomic(op);
                    }
                    Ok(())
                })?;
                found
            }
            // A word between whose bytes there may be others.
            Memory::Signed(..) => Err(AccessError::OutOfRange),
        }
    }

    /// Whether an access could be served now, or fails now: see [`Umem::is_ready`].
    pub fn is_ready(&self, at: u64, len: usize, write: bool) -> bool {
        let Ok(offset) = self.place(at, len) else { return true };
        match &self.memory {
            Memory::One(umem, _) => umem.is_ready(offset, len, write),
            Memory::Many(pieces, _) => {
                let mut ready = true;
                let looked = for_each(pieces, offset, len, |piece, at, part| {
                    ready &= piece.is_ready(at, part.len(), write);
                    Ok(())
                });
                looked.is_err() || ready
            }
            Memory::Signed(signed, _) => signed.is_ready(offset, len, write),
        }
    }

    /// The `len` bytes of `signed` from `start` on, as the wire counts.
    pub(crate) fn signed(signed: SignedMemory, start: u64, len: u64) -> MemRef {
        MemRef { memory: Memory::Signed(Arc::new(signed), start), len }
    }

    /// The same, which rings `alarm` when the signature of a block fails its check.
    pub(crate) fn watched(mut self, alarm: Option<&Alarm>) -> MemRef {
        self.watch(alarm);
        self
    }

    /// From now on `alarm` rings.
    pub(crate) fn watch(&mut self, alarm: Option<&Alarm>) {
        if let (Memory::Signed(signed, _), Some(alarm)) = (&mut self.memory, alarm)
            && let Some(signed) = Arc::get_mut(signed)
        {
            signed.watch(alarm);
        }
    }

    /// Several ranges, one after the other, with the place of each among them ([`append`]).
    pub(crate) fn of(mut pieces: Vec<(u64, MemRef)>) -> MemRef {
        if pieces.len() == 1
            && let Some((_, only)) = pieces.pop()
        {
            return only;
        }
        let len = end_of(&pieces);
        MemRef { memory: Memory::Many(Arc::new(pieces), 0), len }
    }

    /// The `len` bytes from `at` on, counted from the start of the range.
    pub(crate) fn part(&self, at: u64, len: u64) -> std::result::Result<MemRef, KeyError> {
        let end = at.checked_add(len).ok_or(KeyError::Range)?;
        if end > self.len && !sabotage::on(Sabotage::SkipRangeCheck) {
            return Err(KeyError::Range);
        }
        let memory = match &self.memory {
            Memory::One(umem, offset) => Memory::One(umem.clone(), offset.saturating_add(at)),
            Memory::Many(pieces, offset) => Memory::Many(pieces.clone(), offset.saturating_add(at)),
            Memory::Signed(signed, start) => {
                Memory::Signed(signed.clone(), start.saturating_add(at))
            }
        };
        Ok(MemRef { memory, len })
    }

    /// The `len` bytes from `va` on of memory that begins at `iova`, if all are in it.
    pub(crate) fn within(
        umem: &Arc<Umem>,
        iova: u64,
        va: u64,
        len: u64,
    ) -> std::result::Result<MemRef, KeyError> {
        let offset = va.checked_sub(iova).ok_or(KeyError::Range)?;
        let end = offset.checked_add(len).ok_or(KeyError::Range)?;
        if end > umem.len() && !sabotage::on(Sabotage::SkipRangeCheck) {
            return Err(KeyError::Range);
        }
        Ok(MemRef { memory: Memory::One(umem.clone(), offset), len })
    }

    fn place(&self, at: u64, len: usize) -> std::result::Result<u64, AccessError> {
        let (Memory::One(_, offset) | Memory::Many(_, offset) | Memory::Signed(_, offset)) =
            &self.memory;
        match at.checked_add(len as u64) {
            Some(end) if end <= self.len => Ok(offset + at),
            _ => Err(AccessError::OutOfRange),
        }
    }
}

/// Calls `each` with the pieces that `len` bytes from `offset` on fall into, where in the piece, and which of the bytes.
fn for_each(
    pieces: &[(u64, MemRef)],
    offset: u64,
    len: usize,
    mut each: impl FnMut(&MemRef, u64, std::ops::Range<usize>) -> std::result::Result<(), AccessError>,
) -> std::result::Result<(), AccessError> {
    let first = pieces.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
    let (mut at, mut done) = (offset, 0);
    for (start, piece) in &pieces[first..] {
        if done == len {
            break;
        }
        let room = piece.len().saturating_sub(at - start);
        let here = usize::try_from(room).unwrap_or(usize::MAX).min(len - done);
        if here > 0 {
            each(piece, at - start, done..done + here)?;
            (at, done) = (at + here as u64, done + here);
        }
    }
    if done == len { Ok(()) } else { Err(AccessError::OutOfRange) }
}

/// What a key stands for.
#[derive(Clone)]
pub struct Mkey {
    /// Protection domain.
    pub pd: PdId,
    /// Address of the first byte as peers and work requests name it.
    pub iova: u64,
    /// Rights.
    pub access: Access,
    /// The memory.
    pub umem: Arc<Umem>,
    /// Only peers of this queue pair may use it.
    pub qpn: Option<u32>,
    /// Peers may invalidate it, which revokes its memory.
    pub invalidated_by_peers: bool,
    /// Fields behind the blocks of its memory, or of what passes on the wire.
    pub signed: Option<Signed>,
}

/// What a place of the table holds.
pub(crate) enum Entry {
    /// A registration, and how many windows are bound to it.
    Region { mkey: Mkey, windows: u32 },
    /// A memory window.
    Window(Window),
    /// Whatever the Data Direct function reaches, by its DMA address.
    Physical(Physical),
    /// Parts of that, by their DMA addresses.
    Ksm(Ksm),
    /// A program's key over such parts.
    Crossing(Crossing),
    /// Parts of other keys.
    Indirect(Indirect),
}

pub(crate) struct Slot {
    salt: u8,
    pub(crate) tag: u8,
    pub(crate) entry: Option<Entry>,
}

pub(crate) struct Slots {
    pub(crate) slots: Vec<Slot>,
    free: VecDeque<u32>,
    /// Keys that there ever were.
    filed: u64,
    /// Windows that are bound.
    pub(crate) bound: usize,
}

/// All keys of one device.
///
/// One lock guards the table. It is never held while memory is touched: [`KeyTable::resolve`] hands out a
/// [`MemRef`], whose accesses enter the registration itself.
pub struct KeyTable {
    slots: RwLock<Slots>,
    random: RandomState,
}

impl Default for KeyTable {
    fn default() -> KeyTable {
        KeyTable::new()
    }
}

impl KeyTable {
    /// An empty table whose key tags start at random.
    pub fn new() -> KeyTable {
        // Place 0 stays empty: a zeroed key must never be valid.
        let slots = vec![Slot { salt: 0, tag: 0, entry: None }];
        KeyTable {
            slots: RwLock::new(Slots { slots, free: VecDeque::new(), filed: 0, bound: 0 }),
            random: RandomState::new(),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Slots> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Slots> {
        self.slots.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Installs a key over `umem`; lkey and rkey are the same number.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the device has no key left.
    pub fn insert(&self, pd: PdId, umem: Arc<Umem>, iova: u64, access: Access) -> Result<u32> {
        self.install(Entry::Region { mkey: Mkey::new(pd, iova, access, umem), windows: 0 })
    }

    /// The same, with the low 8 bits of the key as the front end wants them.
    ///
    /// # Errors
    /// As [`KeyTable::insert`].
    pub fn insert_tagged(&self, tag: u8, mkey: Mkey) -> Result<u32> {
        self.file(Entry::Region { mkey, windows: 0 }, Some(tag))
    }

    /// Files `entry` under a new key.
    pub(crate) fn install(&self, entry: Entry) -> Result<u32> {
        self.file(entry, None)
    }

    fn file(&self, entry: Entry, tag: Option<u8>) -> Result<u32> {
        let mut table = self.write();
        let [salt, first_tag, ..] = self.random.hash_one(table.filed).to_ne_bytes();
        let place = if table.slots.len() < MAX_KEYS {
            let place = table.slots.len() as u32;
            // A key that goes finds its place among the free ones as well.
            let gone = table.slots.len() + 1 - table.free.len();
            let room = table.slots.try_reserve(1).and_then(|()| table.free.try_reserve(gone));
            room.map_err(|_| Error::NoMemory("the system has no memory for the key"))?;
            table.slots.push(Slot { salt: 0, tag: first_tag, entry: None });
            place
        } else {
            table.free.pop_front().ok_or(Error::NoMemory("all memory keys are in use"))?
        };
        table.filed += 1;
        let slot = &mut table.slots[place as usize];
        slot.salt = salt.max(1);
        slot.tag = tag.unwrap_or_else(|| slot.tag.wrapping_add(1));
        slot.entry = Some(entry);
        Ok(u32::from(slot.salt) << 24 | place << 8 | u32::from(slot.tag))
    }

    /// Changes what `key` stands for (re-registration); the number stays.
    ///
    /// # Errors
    /// [`Error::Busy`] while windows are bound to it, [`Error::Invalid`] when the key is gone.
    pub fn replace(&self, key: u32, new: Mkey) -> Result<Mkey> {
        self.exchange(key, None, new)
    }

    /// The same, and the low 8 bits of the key become `tag`; the number that it has then.
    ///
    /// # Errors
    /// As [`KeyTable::replace`].
    pub fn replace_tagged(&self, key: u32, tag: u8, new: Mkey) -> Result<(u32, Mkey)> {
        let old = self.exchange(key, Some(tag), new)?;
        Ok((key & !0xff | u32::from(tag), old))
    }

    fn exchange(&self, key: u32, tag: Option<u8>, new: Mkey) -> Result<Mkey> {
        let mut table = self.write();
        let old = match table.find_mut(key) {
            Some(Entry::Region { windows: 1.., .. }) => return Err(BOUND),
            Some(Entry::Region { mkey, .. }) => std::mem::replace(mkey, new),
            _ => return Err(Error::Invalid("no such key")),
        };
        if let (Some(tag), Some(slot)) = (tag, table.slot_mut(key)) {
            slot.tag = tag;
        }
        Ok(old)
    }

    /// Removes the key of a registration and revokes its memory; returns once no access through it is in progress. Windows
    /// that are still bound to it lose it. `retract` runs before the place can be used again.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such key.
    pub fn remove(&self, key: u32, retract: impl FnOnce()) -> Result<()> {
        self.take_region(key, true, retract)
    }

    /// The same, but not while a window is bound to it (IBA 10.6.7.2.6).
    ///
    /// # Errors
    /// [`Error::Busy`] then.
    pub fn remove_unbound(&self, key: u32, retract: impl FnOnce()) -> Result<()> {
        self.take_region(key, false, retract)
    }

    fn take_region(&self, key: u32, bound_too: bool, retract: impl FnOnce()) -> Result<()> {
        let mut table = self.write();
        let windows = match table.find(key) {
            Some(Entry::Region { windows, .. }) => *windows,
            _ => return Err(Error::Invalid("no such key")),
        };
        if windows > 0 {
            if !bound_too {
                return Err(BOUND);
            }
            table.unbind_all(|_, binding| binding.region == key);
        }
        retract();
        let entry = table.take(key);
        drop(table);
        if let Some(Entry::Region { mkey, .. }) = entry {
            mkey.umem.revoke();
        }
        Ok(())
    }

    /// Whether `key` stands for a memory window.
    pub(crate) fn is_window(&self, key: u32) -> bool {
        matches!(self.read().find(key), Some(Entry::Window(_)))
    }

    /// The registration that `key` stands for.
    pub fn get(&self, key: u32) -> Option<Mkey> {
        match self.read().find(key) {
            Some(Entry::Region { mkey, .. }) => Some(mkey.clone()),
            _ => None,
        }
    }

    /// Checks a local access: key, PD, rights (all bits of `access`; LOCAL_READ is the empty set) and range. Memory windows
    /// have no local key. A length of 0 resolves for any key (IBA 9.7.4.1.6): callers skip the call then. What a key with
    /// block signatures gives is as long as what passes on the wire.
    pub fn resolve(
        &self,
        pd: PdId,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        self.read().resolve(pd, key, Span::Local(va, len), access)
    }

    /// As [`KeyTable::resolve`] for a key that lies below another one: with block signatures it has no place there.
    pub(crate) fn resolve_below(
        &self,
        pd: PdId,
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        let memory = self.resolve(pd, key, va, len, access)?;
        if matches!(memory.memory, Memory::Signed(..)) { Err(KeyError::Denied) } else { Ok(memory) }
    }

    /// Checks an access by the peer of QP `qpn`: the key may also be that of a memory window.
    pub fn resolve_remote(
        &self,
        who: (PdId, u32),
        key: u32,
        va: u64,
        len: u64,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        self.read().resolve_remote(who, key, Span::Wire(va, len), access)
    }

    /// Checks an access by the peer of QP `qpn` to all that `key` stands for.
    pub fn resolve_whole(
        &self,
        who: (PdId, u32),
        key: u32,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        self.read().resolve_remote(who, key, Span::Whole, access)
    }
}

/// Checks domain and rights of a key.
pub(crate) fn check_rights(
    same_pd: bool,
    granted: Access,
    wanted: Access,
) -> std::result::Result<(), KeyError> {
    if !same_pd && !sabotage::on(Sabotage::SkipPdCheck) {
        return Err(KeyError::ForeignPd);
    }
    if !granted.contains(wanted) && !sabotage::on(Sabotage::SkipKeyAccess) {
        return Err(KeyError::Denied);
    }
    Ok(())
}

/// Why a registration cannot go or change.
const BOUND: Error = Error::Busy("memory windows are bound to the region");

impl Mkey {
    /// A key of a registration: open to every queue pair of its domain, and only its owner ends it.
    pub fn new(pd: PdId, iova: u64, access: Access, umem: Arc<Umem>) -> Mkey {
        Mkey { pd, iova, access, umem, qpn: None, invalidated_by_peers: false, signed: None }
    }

    /// Whether peers of `qpn` may use it.
    pub(crate) fn is_open_to(&self, qpn: u32) -> bool {
        self.qpn.is_none_or(|own| own == qpn)
    }

    pub(crate) fn resolve(
        &self,
        pd: PdId,
        va: u64,
        len: u64,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        check_rights(self.pd == pd, self.access, access)?;
        self.range(va, len)
    }

    /// The same for what `key`, which is this, shows to who knows of its signatures.
    fn resolve_span(
        &self,
        key: u32,
        pd: PdId,
        span: Span,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        let Some((va, len)) = span.part() else {
            return self.resolve(pd, self.iova, self.umem.len(), access);
        };
        let Some(signed) = &self.signed else { return self.resolve(pd, va, len, access) };
        check_rights(self.pd == pd, self.access, access)?;
        let offset = va.checked_sub(self.iova).ok_or(KeyError::Range)?;
        let on_wire = signed.range(offset, len, span.is_local())?;
        signed.resolve(key, on_wire, self.umem.len(), |offset, len| {
            MemRef::within(&self.umem, 0, offset, len)
        })
    }

    /// The `len` bytes from `va` on, if all are in the registration.
    pub(crate) fn range(&self, va: u64, len: u64) -> std::result::Result<MemRef, KeyError> {
        MemRef::within(&self.umem, self.iova, va, len)
    }
}

/// Where in the table `key` is.
pub(crate) fn place(key: u32) -> usize {
    (key >> 8) as usize % MAX_KEYS
}

fn is_salt_of(slot: &Slot, key: u32) -> bool {
    slot.salt == (key >> 24) as u8 || sabotage::on(Sabotage::SkipRkeyCheck)
}

impl Slots {
    /// The place of `key`, whatever its tag.
    pub(crate) fn slot(&self, key: u32) -> Option<&Slot> {
        self.slots.get(place(key)).filter(|slot| is_salt_of(slot, key))
    }

    /// The same, to change.
    pub(crate) fn slot_mut(&mut self, key: u32) -> Option<&mut Slot> {
        self.slots.get_mut(place(key)).filter(|slot| is_salt_of(slot, key))
    }

    pub(crate) fn find(&self, key: u32) -> Option<&Entry> {
        let slot = self.slot(key)?;
        if slot.tag == key as u8 || sabotage::on(Sabotage::SkipRkeyCheck) {
            slot.entry.as_ref()
        } else {
            None
        }
    }

    /// Checks an access to what has a local key: a registration, or a key over parts of some.
    fn resolve(
        &self,
        pd: PdId,
        key: u32,
        span: Span,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        match self.find(key) {
            Some(Entry::Region { mkey, .. }) => mkey.resolve_span(key, pd, span, access),
            Some(Entry::Crossing(crossing)) => match span.part() {
                Some((va, len)) => self.resolve_crossing(crossing, pd, va, len, access),
                None => self.resolve_whole_crossing(crossing, pd, access),
            },
            Some(Entry::Indirect(indirect)) => {
                self.resolve_indirect(key, indirect, pd, span, access)
            }
            _ => Err(KeyError::Unknown),
        }
    }

    /// Checks an access by the peer of QP `qpn`.
    fn resolve_remote(
        &self,
        (pd, qpn): (PdId, u32),
        key: u32,
        span: Span,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        match (self.find(key), span.part()) {
            (Some(Entry::Region { mkey, .. }), _) if !mkey.is_open_to(qpn) => {
                Err(KeyError::NotBound)
            }
            (Some(Entry::Window(window)), Some((va, len))) => {
                window.resolve(pd, qpn, va, len, access)
            }
            (Some(Entry::Window(window)), None) => window.resolve_whole(pd, qpn, access),
            // Keys of the driver's own domain: no queue pair is in it.
            (Some(Entry::Physical(_) | Entry::Ksm(_)), _) => Err(KeyError::ForeignPd),
            _ => self.resolve(pd, key, span, access),
        }
    }

    pub(crate) fn find_mut(&mut self, key: u32) -> Option<&mut Entry> {
        let slot = self.slot_mut(key)?;
        if slot.tag == key as u8 { slot.entry.as_mut() } else { None }
    }

    /// Empties the place of `key`, whatever its tag, for later use.
    pub(crate) fn take(&mut self, key: u32) -> Option<Entry> {
        let entry = self.slot_mut(key)?.entry.take()?;
        self.free.push_back(place(key) as u32);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use umem::Segment;

    #[test]
    fn a_key_of_one_queue_pair_is_closed_to_others_whole_too() {
        let (keys, pd, access) = (KeyTable::new(), PdId(1), Access::REMOTE_READ);
        let memory = Umem::from_segments(Vec::new(), false);
        let mkey = Mkey { qpn: Some(5), ..Mkey::new(pd, 0, access, memory) };
        let key = keys.insert_tagged(7, mkey).unwrap();
        let part = |qpn| keys.resolve_remote((pd, qpn), key, 0, 0, access).err();
        let whole = |qpn| keys.resolve_whole((pd, qpn), key, access).err();
        assert_eq!((part(5), whole(5)), (None, None));
        assert_eq!((part(6), whole(6)), (Some(KeyError::NotBound), Some(KeyError::NotBound)));
    }

    #[test]
    fn nobody_tells_a_key_by_the_one_before() {
        let (keys, pd) = (KeyTable::new(), PdId(1));
        let mkey = || Mkey::new(pd, 0, Access::REMOTE_READ, Umem::from_segments(Vec::new(), false));
        let filed: Vec<u32> = (0..300).map(|_| keys.insert_tagged(7, mkey()).unwrap()).collect();
        let salts: std::collections::BTreeSet<u32> = filed.iter().map(|key| key >> 24).collect();
        // Of 255 salts 300 keys have some 176.
        assert!(salts.len() > 100 && !salts.contains(&0), "{} salts", salts.len());
        let reach = |key| keys.resolve_remote((pd, 5), key, 0, 0, Access::REMOTE_READ).err();
        for key in filed {
            let others = (0..=255).map(|salt| key & 0xff_ffff | salt << 24);
            for other in others.filter(|other| *other != key) {
                assert_eq!(reach(other), Some(KeyError::Unknown));
                assert!(keys.remove(other, || ()).is_err() && keys.get(other).is_none());
            }
            assert_eq!(reach(key), None);
            keys.remove(key, || ()).unwrap();
        }
    }

    #[test]
    fn a_range_of_several_pieces_is_entered_where_it_is_asked_for() {
        let bytes: Vec<u8> = (0..40).collect();
        mm::guard::install();
        let addr = bytes.as_ptr() as u64;
        let segment = Segment {
            space: umem::process_space(),
            addr,
            len: 40,
            route: Arc::new(pcie::Route::local()),
        };
        let umem = Umem::from_segments(vec![segment], false);
        // The second half comes first, an empty piece is between, and the first half is in two.
        let parts = [(20, 20), (5, 0), (0, 8), (8, 12)];
        let piece = |(va, len)| MemRef::within(&umem, 0, va, len).unwrap_or_else(|e| panic!("{e}"));
        let mut pieces = Vec::new();
        parts.into_iter().for_each(|part| append(&mut pieces, piece(part)).unwrap());
        let whole = MemRef::of(pieces);
        assert_eq!(whole.len(), 40);
        let expected: Vec<u8> = (20..40).chain(0..20).collect();
        for at in 0..40usize {
            for end in at..=40 {
                let mut found = vec![0; end - at];
                whole.read(at as u64, &mut found).unwrap();
                assert_eq!(found, expected[at..end], "{at}..{end}");
            }
        }
        assert_eq!(whole.read(39, &mut [0; 2]), Err(AccessError::OutOfRange));
        assert_eq!(whole.read(41, &mut []), Err(AccessError::OutOfRange));
    }
}
