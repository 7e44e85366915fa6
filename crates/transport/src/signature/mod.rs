//! Block signatures: integrity fields behind every block of data, as mlx5dv_wr_set_mkey_sig_block(3) describes them.
//!
//! A key with signatures knows two domains: how its bytes lie in memory, and how they pass on the wire. Either may have a
//! field behind each block, of a kind and a block size of its own. What goes from one to the other is checked where it
//! comes from and generated, copied or left out where it goes. A block that is not complete has no field.
//!
//! Bytes are counted in one of three ways: as data alone, as they lie in memory, and as they pass on the wire. Block 0
//! begins at the key's address 0, wherever a transfer begins, so a peer may move a key's bytes in as many requests as it
//! likes.

mod guard;

pub use guard::{GuardKind, guard};

use crate::error::{Error, Result};
use std::ops::Range;

/// Most bytes of a block.
pub const MAX_BLOCK: u32 = 4160;
/// Most bytes of a field.
const MAX_FIELD: usize = 8;

/// A field as it lies in memory; short ones leave the end unused.
pub(crate) type Field = [u8; MAX_FIELD];

/// When a T10-DIF field is taken for good unseen (T10 SBC-3, protection information).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Escape {
    /// Never.
    Never,
    /// When its application tag is 0xffff.
    AppTag,
    /// When the reference tag is 0xffffffff as well.
    AppAndRefTag,
}

/// The T10 protection information field: guard, application tag and reference tag, highest byte first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct T10Dif {
    /// [`GuardKind::T10Crc`] or [`GuardKind::IpChecksum`].
    pub guard: GuardKind,
    /// The guard's calculation begins with all bits one.
    pub seeded: bool,
    /// Application tag.
    pub app_tag: u16,
    /// Reference tag of the key's first block.
    pub ref_tag: u32,
    /// The reference tag grows by one from block to block.
    pub increments: bool,
    /// Blocks that are not checked.
    pub escape: Escape,
}

/// What stands behind each block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Signature {
    /// T10 protection information, 8 bytes.
    T10Dif(T10Dif),
    /// A CRC of 4 or 8 bytes, lowest byte first, as its bits leave on a serial line.
    Crc {
        /// Which one.
        guard: GuardKind,
        /// Its calculation begins with all bits one.
        seeded: bool,
    },
}

/// The fields of one domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignatureDomain {
    /// Bytes of data in each block.
    pub block: u32,
    /// What stands behind them.
    pub signature: Signature,
}

/// What a check found wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SignatureFault {
    /// The checksum.
    Guard,
    /// The application tag of T10-DIF.
    AppTag,
    /// The reference tag of T10-DIF.
    RefTag,
}

/// A block that failed its check (mlx5dv_mkey_check(3)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignatureError {
    /// The first part of the field that was wrong.
    pub fault: SignatureFault,
    /// What it should be: calculated from the data, or configured.
    pub actual: u64,
    /// What the field says.
    pub expected: u64,
    /// Where the block begins, counted from the key's address 0 with the fields of the domain that was checked.
    pub offset: u64,
}

/// The signatures of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockSignature {
    pub(crate) memory: Option<SignatureDomain>,
    pub(crate) wire: Option<SignatureDomain>,
    /// Bytes of an incoming field that are checked: a bit for each, as [`Signature::bit`] says.
    pub(crate) check: u8,
    /// Bytes of an outgoing field that are taken from the incoming one.
    pub(crate) copy: u8,
}

impl Signature {
    /// Bytes of the field.
    pub(crate) fn len(&self) -> usize {
        match self {
            Signature::Crc { guard: GuardKind::Crc32 | GuardKind::Crc32c, .. } => 4,
            _ => 8,
        }
    }

    /// The bit of a mask that stands for byte `at` of the field, as the table of mlx5dv_wr_set_mkey_sig_block(3) has it:
    /// bytes of a value count from its lowest.
    pub(crate) fn bit(&self, at: usize) -> u8 {
        match self {
            Signature::T10Dif(_) => 0x80 >> at,
            Signature::Crc { .. } if self.len() == 4 => 0x10 << at,
            Signature::Crc { .. } => 1 << at,
        }
    }

    /// The field behind block number `index`.
    pub(crate) fn field(&self, index: u64, block: &[u8]) -> Field {
        let mut field = Field::default();
        match self {
            Signature::T10Dif(dif) => {
                let sum = guard(dif.guard, dif.seeded, block) as u16;
                // It wraps as logical block addresses of 32 bits do.
                let ref_tag =
                    dif.ref_tag.wrapping_add(if dif.increments { index as u32 } else { 0 });
                field[..2].copy_from_slice(&sum.to_be_bytes());
                field[2..4].copy_from_slice(&dif.app_tag.to_be_bytes());
                field[4..].copy_from_slice(&ref_tag.to_be_bytes());
            }
            Signature::Crc { guard: kind, seeded } => {
                field = guard(*kind, *seeded, block).to_le_bytes();
            }
        }
        field
    }

    /// Checks the bytes of `found` that `mask` names.
    pub(crate) fn check(
        &self,
        index: u64,
        block: &[u8],
        found: &Field,
        mask: u8,
    ) -> Option<SignatureError> {
        let right = self.field(index, block);
        let differs = |&at: &usize| mask & self.bit(at) != 0 && right[at] != found[at];
        // The parts of T10-DIF lie in the order in which their faults are told (mlx5dv_mkey_check(3)).
        let wrong = (0..self.len()).find(differs)?;
        let (fault, part) = match self {
            Signature::T10Dif(dif) if dif.lets_pass(found) => return None,
            Signature::T10Dif(_) if wrong < 2 => (SignatureFault::Guard, 0..2),
            Signature::T10Dif(_) if wrong < 4 => (SignatureFault::AppTag, 2..4),
            Signature::T10Dif(_) => (SignatureFault::RefTag, 4..8),
            Signature::Crc { .. } => (SignatureFault::Guard, 0..MAX_FIELD),
        };
        let value = |field: &Field| match self {
            Signature::T10Dif(_) => {
                field[part.clone()].iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
            }
            Signature::Crc { .. } => u64::from_le_bytes(*field),
        };
        Some(SignatureError { fault, actual: value(&right), expected: value(found), offset: 0 })
    }

    /// Bytes of the field that are copied from one of `other`, where nobody says which: those that would be the same.
    fn common(&self, other: &Signature) -> u8 {
        match (self, other) {
            (Signature::T10Dif(a), Signature::T10Dif(b)) => {
                let same = |same: bool, mask: u8| if same { mask } else { 0 };
                same(a.guard == b.guard && a.seeded == b.seeded, 0xc0)
                    | same(a.app_tag == b.app_tag, 0x30)
                    | same(a.ref_tag == b.ref_tag, 0x0f)
            }
            _ => 0xff,
        }
    }

    /// Whether both are of one type, whatever their values.
    fn resembles(&self, other: &Signature) -> bool {
        match (self, other) {
            (Signature::T10Dif(_), Signature::T10Dif(_)) => true,
            (Signature::Crc { guard: a, .. }, Signature::Crc { guard: b, .. }) => a == b,
            _ => false,
        }
    }
}

impl T10Dif {
    fn lets_pass(&self, found: &Field) -> bool {
        match self.escape {
            Escape::Never => false,
            Escape::AppTag => found[2..4] == [0xff; 2],
            Escape::AppAndRefTag => found[2..] == [0xff; 6],
        }
    }
}

impl SignatureDomain {
    fn check_values(&self) -> Result<()> {
        let fits = match self.signature {
            Signature::T10Dif(dif) => {
                matches!(dif.guard, GuardKind::T10Crc | GuardKind::IpChecksum)
                    && self.block.is_multiple_of(8)
            }
            Signature::Crc { guard, .. } => {
                matches!(guard, GuardKind::Crc32 | GuardKind::Crc32c | GuardKind::Crc64Xp10)
            }
        };
        match fits && (1..=MAX_BLOCK).contains(&self.block) {
            true => Ok(()),
            false => Err(Error::Invalid("a guard or block size that the signature cannot have")),
        }
    }

    /// Bytes of a block and its field.
    pub(crate) fn stride(&self) -> u64 {
        u64::from(self.block) + self.signature.len() as u64
    }

    /// Where block number `index` begins.
    pub(crate) fn begin(&self, index: u64) -> u64 {
        index * self.stride()
    }

    /// How many bytes `data` bytes and the fields of all complete blocks are.
    pub(crate) fn position(&self, data: u64) -> u64 {
        data + data / u64::from(self.block) * self.signature.len() as u64
    }

    /// How many of the first `position` bytes are data.
    pub(crate) fn data(&self, position: u64) -> u64 {
        let block = u64::from(self.block);
        position / self.stride() * block + (position % self.stride()).min(block)
    }

    /// The block whose field has the byte at `position`, and which byte of the field that is; or how many bytes of data
    /// follow.
    pub(crate) fn at(&self, position: u64) -> std::result::Result<u64, (u64, usize)> {
        let (index, within) = (position / self.stride(), position % self.stride());
        match within.checked_sub(self.block.into()) {
            None => Ok(u64::from(self.block) - within),
            Some(byte) => Err((index, byte as usize)),
        }
    }

    /// The blocks whose last byte is among the bytes of data from `data.start` to `data.end`.
    pub(crate) fn completed(&self, data: &Range<u64>) -> Range<u64> {
        data.start / u64::from(self.block)..data.end / u64::from(self.block)
    }

    /// The data of all blocks that have, or whose fields have, bytes at these positions.
    fn touched(&self, positions: &Range<u64>) -> Range<u64> {
        let block = u64::from(self.block);
        let (first, end) = (positions.start / self.stride(), positions.end.div_ceil(self.stride()));
        first * block..end * block
    }

    /// The whole blocks around bytes of data.
    fn around(&self, data: Range<u64>) -> Range<u64> {
        let block = u64::from(self.block);
        data.start / block * block..data.end.div_ceil(block) * block
    }
}

/// [`SignatureDomain::position`], where there may be no fields.
pub(crate) fn position(domain: &Option<SignatureDomain>, data: u64) -> u64 {
    domain.map_or(data, |domain| domain.position(data))
}

/// [`SignatureDomain::data`], where there may be no fields.
pub(crate) fn data(domain: &Option<SignatureDomain>, position: u64) -> u64 {
    domain.map_or(position, |domain| domain.data(position))
}

impl BlockSignature {
    /// The signatures of a key in memory and on the wire. `check` names the bytes of incoming fields that are checked;
    /// `copy` those of outgoing ones that are copied, which are all that would not change if it is left to us.
    ///
    /// # Errors
    /// [`Error::Invalid`] without any domain, for a domain that cannot be, and for a copy between different fields.
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

    /// The bytes on the wire that stand for those from `local.start` to `local.end` of a local request. That counts as the
    /// wire does where no fields are there, and else as memory does (Linux `rdma_rw_ctx_signature_init`).
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

    /// The bytes of memory that must be there for bytes on the wire, and those that may be looked at: whole blocks.
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
mod tests {
    use super::*;

    fn crc(block: u32) -> SignatureDomain {
        SignatureDomain {
            block,
            signature: Signature::Crc { guard: GuardKind::Crc32c, seeded: true },
        }
    }

    fn dif(block: u32) -> SignatureDomain {
        SignatureDomain { block, signature: Signature::T10Dif(tags()) }
    }

    fn tags() -> T10Dif {
        T10Dif {
            guard: GuardKind::T10Crc,
            seeded: false,
            app_tag: 0xabcd,
            ref_tag: 0xffff_ffff,
            increments: true,
            escape: Escape::Never,
        }
    }

    #[test]
    fn places_and_data_are_each_others_inverse() {
        for domain in [crc(512), dif(520), crc(1)] {
            for data in 0..5000 {
                let position = domain.position(data);
                assert_eq!(domain.data(position), data);
                // A field belongs to the end of its block.
                assert!(position == 0 || domain.data(position - 1) <= data);
            }
            assert_eq!(domain.at(u64::from(domain.block)), Err((0, 0)));
            assert_eq!(domain.at(domain.stride() - 1), Err((0, domain.signature.len() - 1)));
            assert_eq!(domain.at(domain.stride()), Ok(domain.block.into()));
        }
    }

    #[test]
    fn local_requests_count_as_linux_does() {
        let new = |memory, wire| BlockSignature::new(memory, wire, 0, None).unwrap();
        // Memory without fields, the wire with: data.
        assert_eq!(new(None, Some(dif(512))).on_wire(512..1536), 520..1560);
        // The other way round: data as well, which is what the wire has.
        assert_eq!(new(Some(dif(512)), None).on_wire(512..1536), 512..1536);
        // Both: memory's.
        assert_eq!(new(Some(dif(512)), Some(dif(512))).on_wire(520..1040), 520..1040);
        assert_eq!(new(Some(crc(512)), Some(dif(4096))).on_wire(0..516 * 8), 0..4104);
    }

    #[test]
    fn fields_have_the_byte_order_of_their_standard() {
        let block = b"123456789";
        let signature = |guard| Signature::Crc { guard, seeded: true };
        let short = [0x83, 0x92, 0x06, 0xe3, 0, 0, 0, 0];
        assert_eq!(signature(GuardKind::Crc32c).field(7, block), short);
        let long = [0x88, 0x98, 0x79, 0x0a, 0x86, 0x14, 0x8b, 0xae];
        assert_eq!(signature(GuardKind::Crc64Xp10).field(7, block), long);
        let field = Signature::T10Dif(tags()).field(0, block);
        assert_eq!(field, [0xd0, 0xdb, 0xab, 0xcd, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(Signature::T10Dif(tags()).field(2, block)[4..], [0, 0, 0, 1]);
        let still = Signature::T10Dif(T10Dif { increments: false, ..tags() });
        assert_eq!(still.field(2, block)[4..], [0xff; 4]);
    }

    #[test]
    fn each_byte_has_its_bit_of_the_mask() {
        let block = [7; 64];
        let signatures = [
            Signature::T10Dif(tags()),
            Signature::Crc { guard: GuardKind::Crc32, seeded: true },
            Signature::Crc { guard: GuardKind::Crc64Xp10, seeded: false },
        ];
        for signature in signatures {
            let right = signature.field(3, &block);
            assert_eq!(signature.check(3, &block, &right, 0xff), None);
            for at in 0..signature.len() {
                let mut wrong = right;
                wrong[at] ^= 1;
                let bit = signature.bit(at);
                assert!(signature.check(3, &block, &wrong, bit).is_some(), "{signature:?} {at}");
                assert_eq!(signature.check(3, &block, &wrong, !bit), None, "{signature:?} {at}");
            }
        }
        // MLX5DV_SIG_MASK_CRC32, _T10DIF_GUARD, _APPTAG and _REFTAG.
        let mask = |signature: &Signature, part: Range<usize>| {
            part.fold(0, |mask, at| mask | signature.bit(at))
        };
        assert_eq!(mask(&signatures[1], 0..4), 0xf0);
        assert_eq!(mask(&signatures[0], 0..2), 0xc0);
        assert_eq!(mask(&signatures[0], 2..4), 0x30);
        assert_eq!(mask(&signatures[0], 4..8), 0x0f);
        assert_eq!(mask(&signatures[2], 0..8), 0xff);
    }

    #[test]
    fn the_first_wrong_part_is_told_with_both_values() {
        let signature = Signature::T10Dif(T10Dif { ref_tag: 10, ..tags() });
        let block = b"123456789";
        let error =
            |fault, actual, expected| Some(SignatureError { fault, actual, expected, offset: 0 });
        let mut found = [0xd0, 0xdc, 0xab, 0xce, 0, 0, 0, 9];
        let check = |found: &Field, mask| signature.check(3, block, found, mask);
        assert_eq!(check(&found, 0xff), error(SignatureFault::Guard, 0xd0db, 0xd0dc));
        assert_eq!(check(&found, 0x3f), error(SignatureFault::AppTag, 0xabcd, 0xabce));
        assert_eq!(check(&found, 0x0f), error(SignatureFault::RefTag, 13, 9));
        found[1] = 0xdb;
        assert_eq!(check(&found, 0xff), error(SignatureFault::AppTag, 0xabcd, 0xabce));
        assert_eq!(check(&found, 0), None);
    }

    #[test]
    fn escaped_blocks_pass_unseen() {
        let with = |escape| Signature::T10Dif(T10Dif { escape, ..tags() });
        let check = |escape, found: Field| with(escape).check(0, &[0; 8], &found, 0xff).is_none();
        let (app, both) = ([1, 2, 255, 255, 3, 4, 5, 6], [1, 2, 255, 255, 255, 255, 255, 255]);
        let almost = [1, 2, 255, 254, 255, 255, 255, 255];
        for (escape, expected) in [
            (Escape::Never, [false, false, false]),
            (Escape::AppTag, [true, true, false]),
            (Escape::AppAndRefTag, [false, true, false]),
        ] {
            assert_eq!([app, both, almost].map(|found| check(escape, found)), expected);
        }
    }

    #[test]
    fn copies_are_what_would_not_change() {
        let copy =
            |memory, wire| BlockSignature::new(Some(memory), Some(wire), 0, None).unwrap().copy;
        let other = |change: fn(&mut T10Dif)| {
            let mut tags = tags();
            change(&mut tags);
            SignatureDomain { block: 512, signature: Signature::T10Dif(tags) }
        };
        assert_eq!(copy(dif(512), dif(512)), 0xff);
        assert_eq!(copy(dif(512), other(|dif| dif.guard = GuardKind::IpChecksum)), 0x3f);
        assert_eq!(copy(dif(512), other(|dif| dif.seeded = true)), 0x3f);
        assert_eq!(copy(dif(512), other(|dif| dif.app_tag = 0)), 0xcf);
        assert_eq!(copy(dif(512), other(|dif| dif.ref_tag = 0)), 0xf0);
        assert_eq!(copy(crc(512), crc(512)), 0xff);
        assert_eq!(copy(crc(512), crc(520)), 0);
        assert_eq!(copy(crc(512), dif(512)), 0);
    }

    #[test]
    fn impossible_signatures_are_refused() {
        let t10_as_crc = SignatureDomain {
            block: 512,
            signature: Signature::Crc { guard: GuardKind::T10Crc, seeded: true },
        };
        let crc_as_t10 = SignatureDomain {
            block: 512,
            signature: Signature::T10Dif(T10Dif { guard: GuardKind::Crc32, ..tags() }),
        };
        for (memory, wire, copy) in [
            (None, None, None),
            (Some(crc(0)), None, None),
            (None, Some(crc(MAX_BLOCK + 1)), None),
            (Some(dif(516)), None, None),
            (Some(t10_as_crc), None, None),
            (Some(crc_as_t10), None, None),
            (Some(crc(512)), None, Some(0)),
            (Some(crc(512)), Some(dif(512)), Some(0xff)),
            (Some(dif(512)), Some(dif(520)), Some(0xff)),
        ] {
            let made = BlockSignature::new(memory, wire, 0xff, copy);
            assert!(matches!(made, Err(Error::Invalid(_))), "{made:?}");
        }
    }
}
