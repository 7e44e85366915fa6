//! Every check of a key.

use super::indirect::{Indirect, Part};
use super::mem_ref::{MemRef, Memory, append};
use super::rights::{KeyError, check_rights};
use super::span::Span;
use super::stacked::{Crossing, Ksm};
use super::table::{Entry, KeyTable, Slots};
use crate::sabotage::{self, Sabotage};
use crate::values::Access;
use crate::values::PdId;

/// Keys below one another that an access follows.
const MAX_DEPTH: u32 = 4;

/// Pieces of memory that one access may fall into.
const MAX_PIECES: usize = 1 << 16;

impl KeyTable {
    /// Checks a local access: key, PD, rights (all bits of `access`; LOCAL_READ is the empty set)
    /// and range. Memory windows have no local key. A length of 0 resolves for any key (IBA
    /// 9.7.4.1.6): callers skip the call then. What a key with block signatures gives is as long as
    /// what passes on the wire.
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

    /// As [`KeyTable::resolve`] for a key that lies below another one: with block signatures it has
    /// no place there.
    pub fn resolve_below(
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

impl Slots {
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
        if indirect.repeat.is_none() {
            return Err(KeyError::NotBound);
        }
        if !indirect.access.contains(access) && !sabotage::on(Sabotage::SkipKeyAccess) {
            return Err(KeyError::Denied);
        }
        let depth = depth.checked_sub(1).ok_or(KeyError::Denied)?;
        // Of what lies below only the rights of this side count.
        let writes =
            access.intersects(Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let below = if writes { Access::LOCAL_WRITE } else { Access::empty() };
        indirect.parts(va, len, |Part { lkey, addr, len }| {
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

impl Slots {
    /// Checks an access to a crossing key and to the keys below it.
    pub(crate) fn resolve_crossing(
        &self,
        crossing: &Crossing,
        pd: PdId,
        va: u64,
        len: u64,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        check_rights(crossing.pd == pd, crossing.access, access)?;
        let end = va.checked_add(len).ok_or(KeyError::Range)?;
        if end > crossing.len && !sabotage::on(Sabotage::SkipRangeCheck) {
            return Err(KeyError::Range);
        }
        self.resolve_ksm(self.ksm_of(crossing)?, va, len, access)
    }

    /// The same for all of it.
    pub(crate) fn resolve_whole_crossing(
        &self,
        crossing: &Crossing,
        pd: PdId,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        let ksm = self.ksm_of(crossing)?;
        let len = ksm.memory.as_ref().map_or(0, |memory| memory.len());
        self.resolve_crossing(crossing, pd, ksm.iova, len, access)
    }

    fn ksm_of(&self, crossing: &Crossing) -> std::result::Result<&Ksm, KeyError> {
        match self.find(crossing.target) {
            Some(Entry::Ksm(ksm)) => Ok(ksm),
            _ => Err(KeyError::Unknown),
        }
    }

    fn resolve_ksm(
        &self,
        ksm: &Ksm,
        va: u64,
        len: u64,
        access: Access,
    ) -> std::result::Result<MemRef, KeyError> {
        // Without the key of the function a KSM key has nothing to translate to.
        let Some(Entry::Physical(physical)) = self.find(ksm.physical) else {
            return Err(KeyError::Unknown);
        };
        check_rights(physical.pd == ksm.pd, physical.access & ksm.access, access)?;
        let memory = ksm.memory.as_ref().ok_or(KeyError::Unknown)?;
        MemRef::within(memory, ksm.iova, va, len)
    }
}

#[cfg(test)]
#[cfg(test)]
mod tests {
    use super::super::region::Mkey;
    use super::*;
    use std::sync::Arc;
    use umem::{AccessError, Segment, Umem};

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
        let salts: std::collections::BTreeSet<u32> = filed.iter().map(|key| key >> 25).collect();
        // Of 127 salts 300 keys have some 115.
        assert!(salts.len() > 80 && !salts.contains(&0), "{} salts", salts.len());
        let reach = |key| keys.resolve_remote((pd, 5), key, 0, 0, Access::REMOTE_READ).err();
        for key in filed {
            let others = (0..=127).map(|salt| key & 0x1ff_ffff | salt << 25);
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
        let map: &mm::Mapping = Box::leak(Box::new(mm::Mapping::anonymous(40).unwrap()));
        map.sink().write(&bytes).unwrap();
        let segment = Segment::of_process(map.sink(), Arc::new(pcie::Route::local()));
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
