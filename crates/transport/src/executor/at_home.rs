//! What a request between two queue pairs of one device reaches without packets: memory under a key
//! of the device's own table.

use super::Published;
use crate::keys::KeyTable;
use crate::values::{Access, PdId, Remote};
use std::ops::Range;
use std::sync::Arc;
use umem::{AccessError, Sink, Source, Umem};

/// Memory that such a request was granted. As long as nobody takes the key's memory away it may be
/// reached; each access enters anew.
pub struct AtHome {
    umem: Arc<Umem>,
    offset: u64,
    len: u64,
}

impl AtHome {
    /// The memory of an RDMA WRITE, or a READ, of `length` bytes at `remote` by the peer of a queue
    /// pair of domain `pd` with these rights; `None` for what the executor would refuse, and for
    /// what is not plain: windows, indirect keys and signatures, pages that are brought in on
    /// demand, and whatever nobody keeps in its place.
    pub fn of(
        keys: &KeyTable,
        (pd, qp_access): (PdId, Access),
        remote: Remote,
        length: u32,
        write: bool,
    ) -> Option<AtHome> {
        keys.look_at(remote.rkey, |mkey| {
            let umem = Some(&mkey.umem).filter(|umem| mkey.is_plain() && umem.can_be_shown())?;
            let published = Published {
                qp_access,
                same_pd: mkey.pd == pd,
                access: mkey.access,
                iova: mkey.iova,
                len: umem.len(),
            };
            let offset = published.check(remote, length, write)?;
            Some(AtHome { umem: umem.clone(), offset, len: length.into() })
        })
    }

    /// The addresses of all of it, if it is in one piece.
    pub fn addresses(&self) -> Option<Range<u64>> {
        self.umem.addresses(self.offset, self.len)
    }

    fn place(&self, at: u64, len: u64) -> Result<u64, AccessError> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.offset + at),
            _ => Err(AccessError::OutOfRange),
        }
    }

    /// Copies `from` to its beginning.
    pub fn write(&self, from: &[u8]) -> Result<(), AccessError> {
        self.umem.write(self.place(0, from.len() as u64)?, from, 0)
    }

    /// Fills `into` from its beginning.
    pub fn read(&self, into: &mut [u8]) -> Result<(), AccessError> {
        self.umem.read(self.place(0, into.len() as u64)?, into, 0)
    }

    /// Copies `from` to `at`. Who calls is inside the registration that `from` is of, so this never
    /// waits.
    pub fn fill(&self, at: u64, from: Source<'_>) -> Result<(), AccessError> {
        let offset = self.place(at, from.len())?;
        let mut done = 0;
        self.umem.try_enter()?.write_in_place(offset, from.len() as usize, &mut |into| {
            let part = from.part(done, into.len())?;
            done += into.len();
            Ok(into.copy_from(part)?)
        })
    }

    /// The same from there to `into`.
    pub fn drain(&self, at: u64, into: Sink<'_>) -> Result<(), AccessError> {
        let offset = self.place(at, into.len())?;
        let mut done = 0;
        self.umem.try_enter()?.read_in_place(offset, into.len() as usize, &mut |from| {
            let part = into.part(done, from.len())?;
            done += from.len();
            Ok(part.copy_from(from)?)
        })
    }
}
