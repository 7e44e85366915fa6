//! Commands about the port of an InfiniBand subnet.

use super::part::request;
use crate::layout::bits::Field;

// Fields of `hca_vport_context`, which a query answers with as well.
pub(crate) const CAP_MASK1: Field = Field::new(0x200, 32);
/// Which of them a driver may change, and in a command which it does.
pub(crate) const CAP_MASK1_FIELD_SELECT: Field = Field::new(0x220, 32);

/// `hca_vport_context` in the command that changes it.
const CONTEXT_BIT: usize = 0x80;

request! {
    ModifyHcaVportContext {
        cap_mask1: u32 = CAP_MASK1.at(CONTEXT_BIT),
        cap_mask1_field_select: u32 = CAP_MASK1_FIELD_SELECT.at(CONTEXT_BIT),
    }

    /// `query_hca_vport_gid_in` and `query_hca_vport_pkey_in`.
    QueryTable {
        /// `gid_index` or `pkey_index`.
        index: u16 = Field::new(0x70, 16),
    }

    MadIfc {
        /// The datagram; what it lacks is 0.
        mad: Vec<u8> = 0x10..,
    }
}
