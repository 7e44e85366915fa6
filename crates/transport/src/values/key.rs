//! What a send request makes of an indirect key.

use super::Sge;
use crate::signature::BlockSignature;

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
    Set(BlockSignature),
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

    pub(crate) fn entries(&self) -> usize {
        match self {
            KeyLayout::List(parts) => parts.len(),
            KeyLayout::Interleaved { strides, .. } => strides.len(),
        }
    }

    /// The strides, and how often they repeat: a list is one of strides that do not.
    pub(crate) fn strides(&self) -> (u32, impl Iterator<Item = Stride>) {
        let (repeat, parts, strides) = match self {
            KeyLayout::List(parts) => (1, parts.as_slice(), &[][..]),
            KeyLayout::Interleaved { repeat, strides } => (*repeat, &[][..], strides.as_slice()),
        };
        let once =
            |part: &Sge| Stride { addr: part.addr, bytes: part.length, skip: 0, lkey: part.lkey };
        (repeat, parts.iter().map(once).chain(strides.iter().copied()))
    }
}
