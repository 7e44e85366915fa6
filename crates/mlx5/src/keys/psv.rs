//! Protection signature values (PRM "PSV"; `create_psv_in`, `struct mlx5_seg_set_psv`): what a
//! transfer with block signatures begins with. Each is an object of a protection domain, and a
//! request sets it.
//!
//! Here a key's signatures are calculated from its first block on at every access, with the values
//! that the key's own description has, which a driver sets a PSV to as well. So a PSV is kept, and
//! checked when it is named; nothing is carried over in it.

use crate::layout::bits::be32;
use crate::layout::head::Status;
use crate::machine::table::Table;
use hca::PdId;
use std::ops::Range;

/// Numbers of PSVs.
pub(crate) const ALL: Range<u32> = 1..1 << 16;

/// The opcode of a request that sets one.
pub(crate) const SET: u8 = 0x20;

/// The PSV that a request names in its segment behind the control segment; `None` if that is cut
/// off.
pub(crate) fn named(entry: &[u8]) -> Option<u32> {
    entry.get(16..32).map(|segment| be32(segment, 0) & 0xff_ffff)
}

/// Whether a PSV may be named from domain `pd`; a changer without a domain may name any.
pub(crate) fn check(psvs: &Table<PdId>, number: u32, pd: Option<PdId>) -> Result<(), Status> {
    let own = psvs.get(number)?;
    if pd.is_none_or(|pd| pd == own) { Ok(()) } else { Err(Status::BadResource) }
}
