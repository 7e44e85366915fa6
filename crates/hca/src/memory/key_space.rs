//! The memory behind a key that stands over parts of other keys, for a front end that keeps the
//! list of parts itself.
//!
//! A [`KeySpace`] is a [`DmaSpace`] whose addresses count from the key's first byte. What lies
//! below a byte is looked up and checked at each access, entry by entry, as the device does: a list
//! may be long, may change while it is used, and a key below may end or get its pages only when
//! they are needed. (An [`crate::IndirectKey`] is looked up whole when an operation begins, which
//! suits short lists.) Of what lies below only the rights of this side count.
//!
//! A list of short parts makes an access many times as long as its bytes do. Whoever has others
//! wait for him asks [`parts_reached`], and lets them go first once it is many.

use crate::adapter::Adapter;
use engine_thread::{read, write};
use std::cell::Cell;
use std::sync::{RwLock, Weak};
use transport::keys::MemRef;
use transport::values::Access;
use transport::values::PdId;
use umem::{AccessError, AtomicOp, DmaSpace, Fold};

/// Keys below one another that an access follows.
const MAX_DEPTH: u32 = 4;
/// Changes of one place of a list that one access follows.
const MAX_CHANGES: u32 = 16;

/// Where the bytes from a place on are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyPart {
    /// Local key.
    pub lkey: u32,
    /// Address under it.
    pub addr: u64,
    /// How many bytes follow there.
    pub len: u64,
}

/// The list of a key's parts.
pub trait KeyParts: Send + Sync {
    /// What lies at `offset`, counted from the key's first byte; at least one byte.
    ///
    /// # Errors
    /// [`AccessError::OutOfRange`] beyond the list, [`AccessError::Fault`] where nothing is listed.
    fn part(&self, offset: u64) -> Result<KeyPart, AccessError>;
}

/// In which protection domain the keys below must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Below {
    /// In this domain.
    Domain(PdId),
    /// In whatever domain they are: the key crosses into other domains, and who made it may.
    Any,
}

/// Parts of other keys as memory.
pub struct KeySpace<P> {
    adapter: Weak<Adapter>,
    parts: P,
    below: RwLock<Below>,
}

impl<P: KeyParts> KeySpace<P> {
    /// Memory that `parts` lists, in keys of the adapter.
    pub(crate) fn new(adapter: Weak<Adapter>, parts: P, below: Below) -> KeySpace<P> {
        KeySpace { adapter, parts, below: RwLock::new(below) }
    }

    /// The list.
    pub fn parts(&self) -> &P {
        &self.parts
    }

    /// Keys below are in `domain` from now on, unless the key crosses into any.
    pub fn set_domain(&self, domain: PdId) {
        if let Below::Domain(now) = &mut *write(&self.below) {
            *now = domain;
        }
    }

    /// Does `go` with what lies at `offset`. Where the key below ended meanwhile, because another
    /// is listed in its place, with that one: whoever changes the list ends the old key only then.
    fn reach<T>(
        &self,
        offset: u64,
        most: usize,
        access: Access,
        mut go: impl FnMut(&MemRef) -> Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        let mut part = self.parts.part(offset)?;
        for _ in 0..MAX_CHANGES {
            match self.resolve(part, most, access).and_then(|memory| go(&memory)) {
                Err(AccessError::Revoked) => {}
                Err(AccessError::NotPresent { key, len, addr, .. }) => {
                    return Err(AccessError::NotPresent { key, len, addr, below: true });
                }
                outcome => return outcome,
            }
            let listed = self.parts.part(offset)?;
            if listed == part {
                break;
            }
            part = listed;
        }
        Err(AccessError::Revoked)
    }

    /// A part, checked: `most` bytes, or what it has of them.
    fn resolve(&self, part: KeyPart, most: usize, access: Access) -> Result<MemRef, AccessError> {
        let KeyPart { lkey, addr, len } = part;
        let len = len.min(most as u64);
        let adapter = self.adapter.upgrade().ok_or(AccessError::Revoked)?;
        let keys = adapter.keys();
        let domain = match *read(&self.below) {
            Below::Domain(domain) => domain,
            Below::Any => keys.get(lkey).ok_or(AccessError::Revoked)?.pd,
        };
        keys.resolve_below(domain, lkey, addr, len, access).map_err(|_| AccessError::Revoked)
    }

    /// Calls `each` with the parts that an access falls into, and which of its bytes.
    fn walk(
        &self,
        offset: u64,
        len: usize,
        access: Access,
        mut each: impl FnMut(&MemRef, std::ops::Range<usize>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let _deeper = Depth::enter()?;
        let mut from = 0;
        while from < len {
            let at = offset.checked_add(from as u64).ok_or(AccessError::OutOfRange)?;
            REACHED.set(REACHED.get() + 1);
            from = self.reach(at, len - from, access, |memory| {
                if memory.is_empty() {
                    return Err(AccessError::OutOfRange);
                }
                let end = from + memory.len() as usize;
                each(memory, from..end).map(|()| end)
            })?;
        }
        Ok(())
    }
}

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static REACHED: Cell<u64> = const { Cell::new(0) };
}

/// Parts that accesses of this thread have reached so far, at whatever depth.
pub fn parts_reached() -> u64 {
    REACHED.get()
}

/// One key behind another; a guest may have them stand in a circle.
struct Depth;

impl Depth {
    fn enter() -> Result<Depth, AccessError> {
        let depth = DEPTH.get();
        if depth >= MAX_DEPTH {
            return Err(AccessError::OutOfRange);
        }
        DEPTH.set(depth + 1);
        Ok(Depth)
    }
}

impl Drop for Depth {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl<P: KeyParts> DmaSpace for KeySpace<P> {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.walk(addr, dst.len(), Access::empty(), |memory, piece| memory.read(0, &mut dst[piece]))
    }

    fn read_folding(&self, addr: u64, dst: &mut [u8], fold: &mut Fold) -> Result<(), AccessError> {
        self.walk(addr, dst.len(), Access::empty(), |memory, piece| {
            memory.read_folding(0, &mut dst[piece], fold)
        })
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        self.walk(addr, src.len(), Access::LOCAL_WRITE, |memory, piece| {
            memory.write(0, &src[piece])
        })
    }

    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        let _deeper = Depth::enter()?;
        self.reach(addr, 8, Access::LOCAL_WRITE, |memory| memory.atomic(op))
    }
}
