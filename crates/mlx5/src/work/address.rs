//! Addresses as the HCA's network has them.

use crate::object::shared::{Shared, is_on_ethernet};
use hca::{AhAttr, subnet};

/// The address that a send request names. Its priority on an Ethernet stands a bit above where a
/// service level does.
pub(crate) fn address_of_request(shared: &Shared, ah: AhAttr) -> AhAttr {
    let sl = if is_on_ethernet(&shared.hca) { ah.sl >> 1 } else { ah.sl };
    on_network(shared, AhAttr { sl, ..ah })
}

/// An address as the HCA's network has it. On an InfiniBand subnet the LID alone says where it is.
pub(crate) fn on_network(shared: &Shared, ah: AhAttr) -> AhAttr {
    if is_on_ethernet(&shared.hca) {
        return AhAttr { is_global: true, dlid: 0, ..ah };
    }
    AhAttr {
        is_global: true,
        dgid: subnet::destination(shared.hca.slot(), ah.dlid).to_ipv6_mapped().octets(),
        sgid_index: 0,
        hop_limit: 64,
        ..ah
    }
}
