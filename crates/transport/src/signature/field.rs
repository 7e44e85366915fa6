//! The field behind a block: its kinds, what it says of the block, and what a check of it finds.

use super::guard::{GuardKind, guard};

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

/// The T10 protection information field: guard, application tag and reference tag, highest byte
/// first.
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
    /// Where the block begins, counted from the key's address 0 with the fields of the domain that
    /// was checked.
    pub offset: u64,
}

impl Signature {
    /// Bytes of the field.
    pub(crate) fn len(&self) -> usize {
        match self {
            Signature::Crc { guard: GuardKind::Crc32 | GuardKind::Crc32c, .. } => 4,
            _ => 8,
        }
    }

    /// The bit of a mask that stands for byte `at` of the field, as the table of
    /// mlx5dv_wr_set_mkey_sig_block(3) has it: bytes of a value count from its lowest.
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
        // The parts of T10-DIF lie in the order in which their faults are reported
        // (mlx5dv_mkey_check(3)).
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

    /// Bytes of the field that are copied from one of `other`, where nobody says which: those that
    /// would be the same.
    pub(super) fn common(&self, other: &Signature) -> u8 {
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
    pub(super) fn resembles(&self, other: &Signature) -> bool {
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
