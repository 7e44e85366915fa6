//! Datagrams of subnet management and the attributes in them (IBA 14.2), as far as they are
//! answered here.

use super::header::{HEADER_LEN, class};
use crate::field::{be16, be32, be64, byte, get, put};

/// The classes.
pub const CLASSES: [u8; 2] = [class::SUBNET_MANAGEMENT, class::DIRECTED_ROUTE];
/// The class version.
pub const VERSION: u8 = 1;
/// Length of an attribute, in bytes.
pub const ATTRIBUTE_LEN: usize = 64;
/// Most hops of a directed route.
pub const MOST_HOPS: usize = 63;
/// Bit in the status of a directed datagram that is on its way back.
pub const RETURNS: u16 = 1 << 15;

/// Where the fields stand, counted from the beginning of the datagram (IBA 14.2.1).
pub mod field {
    use crate::field::Field;

    /// How far a directed datagram has come.
    pub const HOP_POINTER: usize = 6;
    /// Hops of a directed route.
    pub const HOP_COUNT: usize = 7;
    /// Management key.
    pub const M_KEY: Field = super::HEADER_LEN..32;
    /// The attribute.
    pub const DATA: Field = 64..128;
    /// The port to leave each hop by; the first counts for nothing.
    pub const INITIAL_PATH: Field = 128..192;
    /// The port that each hop was reached by.
    pub const RETURN_PATH: Field = 192..256;
}

/// Attributes (IBA 14.2.5).
pub mod attribute {
    /// What a node is called.
    pub const NODE_DESCRIPTION: u16 = 0x10;
    /// What a node is.
    pub const NODE_INFO: u16 = 0x11;
    /// What a switch is.
    pub const SWITCH_INFO: u16 = 0x12;
    /// GUIDs of a port.
    pub const GUID_INFO: u16 = 0x14;
    /// What a port is.
    pub const PORT_INFO: u16 = 0x15;
    /// Partitions of a port.
    pub const PKEY_TABLE: u16 = 0x16;
    /// Where a switch sends unicast LIDs.
    pub const FORWARDING_TABLE: u16 = 0x19;
    /// What a subnet manager is.
    pub const SM_INFO: u16 = 0x20;
}

/// The GUID of index 0 in a block of GUIDInfo (IBA 14.2.5.5).
pub const FIRST_GUID: crate::field::Field = 0..8;
/// The key of index 0 in a block of P_KeyTable (IBA 14.2.5.7).
pub const FIRST_PKEY: crate::field::Field = 0..2;

/// Kinds of nodes in [`NodeInfo`].
pub mod node_type {
    /// A channel adapter.
    pub const CHANNEL_ADAPTER: u8 = 1;
    /// A switch.
    pub const SWITCH: u8 = 2;
}

/// NodeInfo (IBA 14.2.5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeInfo {
    /// One of [`node_type`].
    pub node_type: u8,
    /// Physical ports.
    pub ports: u8,
    /// GUID of what the node is a part of.
    pub system_image_guid: u64,
    /// GUID of the node.
    pub node_guid: u64,
    /// GUID of the port that is asked.
    pub port_guid: u64,
    /// Entries of a port's P_Key table.
    pub partition_cap: u16,
    /// The vendor's number for the device.
    pub device_id: u16,
    /// The vendor's number for its revision.
    pub revision: u32,
    /// The port that is asked.
    pub local_port: u8,
    /// The vendor, an organisation's identifier.
    pub vendor_id: [u8; 3],
}

impl NodeInfo {
    /// Length of what counts, in bytes.
    pub const LEN: usize = 40;

    const BASE_VERSION: usize = 0;
    const CLASS_VERSION: usize = 1;
    /// Place of [`NodeInfo::node_type`].
    pub const NODE_TYPE: usize = 2;
    /// Place of [`NodeInfo::ports`].
    pub const PORTS: usize = 3;
    /// Place of [`NodeInfo::system_image_guid`].
    pub const SYSTEM_IMAGE_GUID: crate::field::Field = 4..12;
    /// Place of [`NodeInfo::node_guid`].
    pub const NODE_GUID: crate::field::Field = 12..20;
    /// Place of [`NodeInfo::port_guid`].
    pub const PORT_GUID: crate::field::Field = 20..28;
    const PARTITION_CAP: crate::field::Field = 28..30;
    const DEVICE_ID: crate::field::Field = 30..32;
    const REVISION: crate::field::Field = 32..36;
    const LOCAL_PORT: usize = 36;
    const VENDOR_ID: crate::field::Field = 37..40;

    /// What an attribute says; what is not there is zero.
    pub fn parse(data: &[u8]) -> NodeInfo {
        NodeInfo {
            node_type: byte(data, NodeInfo::NODE_TYPE),
            ports: byte(data, NodeInfo::PORTS),
            system_image_guid: be64(data, NodeInfo::SYSTEM_IMAGE_GUID),
            node_guid: be64(data, NodeInfo::NODE_GUID),
            port_guid: be64(data, NodeInfo::PORT_GUID),
            partition_cap: be16(data, NodeInfo::PARTITION_CAP),
            device_id: be16(data, NodeInfo::DEVICE_ID),
            revision: be32(data, NodeInfo::REVISION),
            local_port: byte(data, NodeInfo::LOCAL_PORT),
            vendor_id: get(data, NodeInfo::VENDOR_ID),
        }
    }

    /// The attribute, with the versions of the common header and of this class.
    pub fn emit(&self) -> [u8; ATTRIBUTE_LEN] {
        let mut out = [0; ATTRIBUTE_LEN];
        out[NodeInfo::BASE_VERSION] = super::header::BASE_VERSION;
        out[NodeInfo::CLASS_VERSION] = VERSION;
        out[NodeInfo::NODE_TYPE] = self.node_type;
        out[NodeInfo::PORTS] = self.ports;
        put(&mut out, NodeInfo::SYSTEM_IMAGE_GUID, &self.system_image_guid.to_be_bytes());
        put(&mut out, NodeInfo::NODE_GUID, &self.node_guid.to_be_bytes());
        put(&mut out, NodeInfo::PORT_GUID, &self.port_guid.to_be_bytes());
        put(&mut out, NodeInfo::PARTITION_CAP, &self.partition_cap.to_be_bytes());
        put(&mut out, NodeInfo::DEVICE_ID, &self.device_id.to_be_bytes());
        put(&mut out, NodeInfo::REVISION, &self.revision.to_be_bytes());
        out[NodeInfo::LOCAL_PORT] = self.local_port;
        put(&mut out, NodeInfo::VENDOR_ID, &self.vendor_id);
        out
    }
}

/// SwitchInfo (IBA 14.2.5.4), as far as it is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SwitchInfo {
    /// Entries of the linear forwarding table.
    pub linear_cap: u16,
    /// Entries of the multicast forwarding table.
    pub multicast_cap: u16,
    /// The highest unicast LID in use.
    pub linear_top: u16,
    /// Port 0 is as able as others.
    pub enhanced_port_0: bool,
}

impl SwitchInfo {
    /// Length of what counts, in bytes.
    pub const LEN: usize = 20;

    const LINEAR_CAP: crate::field::Field = 0..2;
    const MULTICAST_CAP: crate::field::Field = 4..6;
    const LINEAR_TOP: crate::field::Field = 6..8;
    const CAPABILITIES: usize = 16;
    const ENHANCED_PORT_0: u8 = 0x08;

    /// What an attribute says; what is not there is zero.
    pub fn parse(data: &[u8]) -> SwitchInfo {
        SwitchInfo {
            linear_cap: be16(data, SwitchInfo::LINEAR_CAP),
            multicast_cap: be16(data, SwitchInfo::MULTICAST_CAP),
            linear_top: be16(data, SwitchInfo::LINEAR_TOP),
            enhanced_port_0: byte(data, SwitchInfo::CAPABILITIES) & SwitchInfo::ENHANCED_PORT_0
                != 0,
        }
    }

    /// The attribute.
    pub fn emit(&self) -> [u8; ATTRIBUTE_LEN] {
        let mut out = [0; ATTRIBUTE_LEN];
        put(&mut out, SwitchInfo::LINEAR_CAP, &self.linear_cap.to_be_bytes());
        put(&mut out, SwitchInfo::MULTICAST_CAP, &self.multicast_cap.to_be_bytes());
        put(&mut out, SwitchInfo::LINEAR_TOP, &self.linear_top.to_be_bytes());
        if self.enhanced_port_0 {
            out[SwitchInfo::CAPABILITIES] = SwitchInfo::ENHANCED_PORT_0;
        }
        out
    }
}

/// SMInfo (IBA 14.2.5.13) without key and count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SmInfo {
    /// GUID of the port that the manager is at.
    pub guid: u64,
    /// Priority among managers, 4 bits.
    pub priority: u8,
    /// State, 4 bits.
    pub state: u8,
}

impl SmInfo {
    /// Length of what counts, in bytes, with the padding to whole words.
    pub const LEN: usize = 24;
    /// State of the manager that manages.
    pub const MASTER: u8 = 3;

    const GUID: crate::field::Field = 0..8;
    const PRIORITY_AND_STATE: usize = 20;

    /// What an attribute says; what is not there is zero.
    pub fn parse(data: &[u8]) -> SmInfo {
        let both = byte(data, SmInfo::PRIORITY_AND_STATE);
        SmInfo { guid: be64(data, SmInfo::GUID), priority: both >> 4, state: both & 0xf }
    }

    /// The attribute.
    pub fn emit(&self) -> [u8; ATTRIBUTE_LEN] {
        let mut out = [0; ATTRIBUTE_LEN];
        put(&mut out, SmInfo::GUID, &self.guid.to_be_bytes());
        out[SmInfo::PRIORITY_AND_STATE] = self.priority << 4 | self.state & 0xf;
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_info_is_laid_out_as_specified() {
        let info = NodeInfo {
            node_type: node_type::CHANNEL_ADAPTER,
            ports: 2,
            system_image_guid: 3,
            node_guid: 4,
            port_guid: 5,
            partition_cap: 128,
            device_id: 0x1023,
            revision: 7,
            local_port: 1,
            vendor_id: [0, 2, 0xc9],
        };
        let bytes = info.emit();
        assert_eq!(bytes[..4], [1, 1, 1, 2]);
        assert_eq!((bytes[11], bytes[19], bytes[27]), (3, 4, 5));
        assert_eq!(bytes[28..40], [0, 128, 0x10, 0x23, 0, 0, 0, 7, 1, 0, 2, 0xc9]);
        assert_eq!(bytes[40..], [0; 24]);
        assert_eq!(NodeInfo::parse(&bytes), info);
        assert_eq!(NodeInfo::parse(&[]), NodeInfo::default());
    }

    #[test]
    fn switches_and_managers_are_laid_out_as_specified() {
        let info = SwitchInfo {
            linear_cap: 0xc000,
            multicast_cap: 0x3fff,
            linear_top: 0x0400,
            enhanced_port_0: true,
        };
        let bytes = info.emit();
        assert_eq!(bytes[..8], [0xc0, 0, 0, 0, 0x3f, 0xff, 4, 0]);
        assert_eq!(bytes[16], 8);
        assert_eq!(SwitchInfo::parse(&bytes), info);
        let manager = SmInfo { guid: 0x0102, priority: 15, state: SmInfo::MASTER };
        let bytes = manager.emit();
        assert_eq!((bytes[6], bytes[7], bytes[20]), (1, 2, 0xf3));
        assert_eq!(SmInfo::parse(&bytes), manager);
    }
}
