//! Commands about the port of an Ethernet as its network driver sees it.

use super::part::request;
use crate::layout::bits::Field;

// Fields of `nic_vport_context`, which a query answers with as well.
pub(crate) const ROCE_EN: Field = Field::new(0x1f, 1);
/// `disable_mc_local_lb` and `disable_uc_local_lb`.
pub(crate) const DISABLE_LOCAL_LB: Field = Field::new(0x1d, 2);
pub(crate) const MTU: Field = Field::new(0x130, 16);
/// `promisc_uc`, `promisc_mc` and `promisc_all`.
pub(crate) const PROMISC: Field = Field::new(0x780, 3);
pub(crate) const ALLOWED_LIST_TYPE: Field = Field::new(0x785, 3);
pub(crate) const ALLOWED_LIST_SIZE: Field = Field::new(0x790, 16);

/// `roce_addr_layout`.
const ADDRESS: usize = 0x80;

request! {
    QueryNicVportContext {
        allowed_list_type: u8 = Field::new(0x65, 3),
    }

    NicVportContext {
        roce_en: bool = ROCE_EN,
        disable_local_lb: u64 = DISABLE_LOCAL_LB,
        mtu: u16 = MTU,
        promisc: u64 = PROMISC,
        allowed_list_type: u8 = ALLOWED_LIST_TYPE,
        allowed_list_size: u16 = ALLOWED_LIST_SIZE,
        /// Addresses or VLANs.
        allowed_list: Vec<[u8; 8]> = 0x100..,
    }

    ModifyNicVportContext {
        field_select: u32 = Field::new(0x60, 32),
        context: Option<NicVportContext> = 0x800 / 8..,
    }

    ModifyVportState {
        admin_state: u8 = Field::new(0x78, 4),
    }

    SetRoceAddress {
        roce_address_index: u16 = Field::new(0x40, 16),
        source_l3_address: Option<[u8; 16]> = ADDRESS / 8..,
        vlan_valid: bool = Field::new(ADDRESS + 0x83, 1),
        vlan_id: u16 = Field::new(ADDRESS + 0x84, 12),
        source_mac: Option<[u8; 6]> = (ADDRESS + 0x90) / 8..,
        roce_version: u8 = Field::new(ADDRESS + 0xd8, 8),
    }
}
