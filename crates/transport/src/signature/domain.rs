//! Where the blocks and fields of one domain are: data counted alone, and with the fields.

use super::field::Signature;
use super::guard::GuardKind;
use crate::error::{Error, Result};
use std::ops::Range;

/// Most bytes of a block.
pub const MAX_BLOCK: u32 = 4160;

/// The fields of one domain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SignatureDomain {
    /// Bytes of data in each block.
    pub block: u32,
    /// What stands behind them.
    pub signature: Signature,
}

impl SignatureDomain {
    pub(super) fn check_values(&self) -> Result<()> {
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

    /// The block whose field has the byte at `position`, and which byte of the field that is; or
    /// how many bytes of data follow.
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
    pub(super) fn touched(&self, positions: &Range<u64>) -> Range<u64> {
        let block = u64::from(self.block);
        let (first, end) = (positions.start / self.stride(), positions.end.div_ceil(self.stride()));
        first * block..end * block
    }

    /// The whole blocks around bytes of data.
    pub(super) fn around(&self, data: Range<u64>) -> Range<u64> {
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
