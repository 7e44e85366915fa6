//! Nodes as attributes of subnet management show them: channel adapters of one port, and the switch
//! between them (IBA 14.2.5).

use crate::view::{MANAGER_GUID, View};
use hca::DEFAULT_PKEY;
use hca::subnet::{MANAGER_LID, PREFIX};
use wire::field::put;
use wire::mad::port_info::PortInfo;
use wire::mad::smp::{ATTRIBUTE_LEN, FIRST_GUID, FIRST_PKEY, NodeInfo, SwitchInfo, node_type};

/// What channel adapters are called.
pub const ADAPTER_DESCRIPTION: &[u8] = b"peerdma software ConnectX";
const SWITCH_DESCRIPTION: &[u8] = b"peerdma software switch";
/// Mellanox, as our PCI functions say.
const VENDOR: [u8; 3] = [0, 0x02, 0xc9];
/// ConnectX-8.
const ADAPTER_DEVICE: u16 = 0x1023;
const ADAPTER_PKEYS: u16 = 128;
/// LinkUp and Active (IBA 14.2.5.6), as one byte each holds it with its neighbour.
const ACTIVE: u8 = 4;
const LINK_UP: u8 = 5;
const POLLING: u8 = 2;
/// 4 lanes.
const WIDTH_4X: u8 = 2;
/// 2.5, 5 and 10 Gb/s a lane.
const SPEEDS: u8 = 7;
const SPEED_10: u8 = 4;
/// NDR, and all extended speeds up to it.
const SPEED_NDR: u8 = 8;
const EXTENDED_SPEEDS: u8 = 0xf;
/// Codes of 4096 bytes.
const MTU_4096: u8 = 5;
/// VL0 alone.
const ONE_LANE: u8 = 1;
const SUBNET_TIMEOUT: u8 = 18;
/// Entries of the switch's forwarding tables: all LIDs of each kind.
const UNICAST_LIDS: u16 = 0xc000;
const MULTICAST_LIDS: u16 = 0x3fff;

/// IsSM: the manager is here.
const IS_SM: u32 = 1 << 1;
/// IsSystemImageGUIDSupported.
const SYSTEM_IMAGE_GUID: u32 = 1 << 11;
/// IsExtendedSpeedsSupported.
const EXTENDED_SPEED: u32 = 1 << 14;
/// IsCommunicationManagementSupported.
const CONNECTIONS: u32 = 1 << 16;
/// A channel adapter's, once its driver is there.
pub const ADAPTER_CAPABILITIES: u32 = SYSTEM_IMAGE_GUID | EXTENDED_SPEED | CONNECTIONS;
const SWITCH_CAPABILITIES: u32 = IS_SM | SYSTEM_IMAGE_GUID | EXTENDED_SPEED;

/// A node of the subnet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Node {
    /// A channel adapter with its port.
    Adapter {
        /// GUID of the node and of its port.
        guid: u64,
        /// LID of the port.
        lid: u16,
        /// CapabilityMask of the port.
        capabilities: u32,
    },
    /// The switch.
    Switch {
        /// Ports, without port 0; 254 at most.
        ports: u8,
    },
}

/// Most ports of a switch (IBA 4.1).
pub(crate) const MOST_PORTS: usize = 254;

impl View {
    pub(crate) fn switch(&self) -> Node {
        Node::Switch { ports: self.ports.len().min(MOST_PORTS) as u8 }
    }

    /// The switch's port at which the port with this LID is.
    pub(crate) fn switch_port_of(&self, lid: u16) -> Option<u8> {
        let at = self.ports.iter().take(MOST_PORTS).position(|port| port.lid == lid)?;
        u8::try_from(at + 1).ok()
    }

    /// The node behind the switch's port.
    pub(crate) fn behind(&self, switch_port: u8) -> Option<Node> {
        let port = self.ports.get(usize::from(switch_port).checked_sub(1)?)?;
        Some(Node::adapter(port.guid, port.lid))
    }

    /// The node whose port has this LID.
    pub(crate) fn node_at(&self, lid: u16) -> Option<Node> {
        if lid == MANAGER_LID {
            return Some(self.switch());
        }
        self.port_at(lid).map(|port| Node::adapter(port.guid, port.lid))
    }

    /// Every node with the LID it is reached at.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = (u16, Node)> {
        let adapters = self.ports.iter().map(|port| (port.lid, Node::adapter(port.guid, port.lid)));
        std::iter::once((MANAGER_LID, self.switch())).chain(adapters)
    }
}

impl Node {
    pub(crate) fn adapter(guid: u64, lid: u16) -> Node {
        Node::Adapter { guid, lid, capabilities: ADAPTER_CAPABILITIES }
    }

    fn guid(self) -> u64 {
        match self {
            Node::Adapter { guid, .. } => guid,
            Node::Switch { .. } => MANAGER_GUID,
        }
    }

    /// The numbers of its ports that have a PortInfo.
    pub(crate) fn port_numbers(self) -> std::ops::RangeInclusive<u8> {
        match self {
            Node::Adapter { .. } => 1..=1,
            Node::Switch { ports } => 0..=ports,
        }
    }

    /// NodeDescription (IBA 14.2.5.2).
    pub(crate) fn description(self) -> [u8; ATTRIBUTE_LEN] {
        let mut description = [0; ATTRIBUTE_LEN];
        let text = match self {
            Node::Adapter { .. } => ADAPTER_DESCRIPTION,
            Node::Switch { .. } => SWITCH_DESCRIPTION,
        };
        put(&mut description, 0..ATTRIBUTE_LEN, text);
        description
    }

    /// What it is, asked through `local_port`.
    pub(crate) fn info(self, local_port: u8) -> NodeInfo {
        let (node_type, ports, partition_cap, device_id) = match self {
            Node::Adapter { .. } => (node_type::CHANNEL_ADAPTER, 1, ADAPTER_PKEYS, ADAPTER_DEVICE),
            Node::Switch { ports } => (node_type::SWITCH, ports, 1, 0),
        };
        NodeInfo {
            node_type,
            ports,
            system_image_guid: self.guid(),
            node_guid: self.guid(),
            port_guid: self.guid(),
            partition_cap,
            device_id,
            revision: 0,
            local_port,
            vendor_id: VENDOR,
        }
    }

    /// What it is as a switch.
    pub(crate) fn switch_info(self) -> Option<SwitchInfo> {
        let Node::Switch { .. } = self else { return None };
        Some(SwitchInfo {
            linear_cap: UNICAST_LIDS,
            multicast_cap: MULTICAST_LIDS,
            linear_top: MANAGER_LID,
            enhanced_port_0: true,
        })
    }

    /// What its port with this number is, asked through `local_port`.
    pub(crate) fn port_info(self, number: u8, local_port: u8) -> Option<PortInfo> {
        if !self.port_numbers().contains(&number) {
            return None;
        }
        let link = PortInfo {
            local_port,
            width_enabled: WIDTH_4X,
            width_supported: WIDTH_4X,
            width_active: WIDTH_4X,
            speed_supported: SPEEDS,
            speed_enabled: SPEEDS,
            speed_active: SPEED_10,
            state: ACTIVE,
            physical_state: LINK_UP,
            down_default_state: POLLING,
            neighbor_mtu: MTU_4096,
            mtu_cap: MTU_4096,
            vl_cap: ONE_LANE,
            operational_vls: ONE_LANE,
            speed_ext_supported: EXTENDED_SPEEDS,
            speed_ext_enabled: EXTENDED_SPEEDS,
            speed_ext_active: SPEED_NDR,
            ..PortInfo::default()
        };
        let (lid, capabilities) = match self {
            Node::Adapter { lid, capabilities, .. } => (lid, capabilities),
            Node::Switch { .. } if number == 0 => (MANAGER_LID, SWITCH_CAPABILITIES),
            // The other ports of a switch have no LID.
            Node::Switch { .. } => (0, 0),
        };
        if lid == 0 {
            return Some(link);
        }
        Some(PortInfo {
            gid_prefix: PREFIX,
            lid,
            master_sm_lid: MANAGER_LID,
            capabilities,
            guid_cap: 1,
            subnet_timeout: SUBNET_TIMEOUT,
            ..link
        })
    }

    /// GUIDInfo (IBA 14.2.5.5): the block of eight that `block` names.
    pub(crate) fn guid_info(self, block: u32) -> [u8; ATTRIBUTE_LEN] {
        let mut info = [0; ATTRIBUTE_LEN];
        if block == 0 {
            put(&mut info, FIRST_GUID, &self.guid().to_be_bytes());
        }
        info
    }

    /// P_KeyTable (IBA 14.2.5.7): the block of 32 that `block` names.
    pub(crate) fn pkey_table(self, block: u32) -> [u8; ATTRIBUTE_LEN] {
        let mut table = [0; ATTRIBUTE_LEN];
        if block == 0 {
            put(&mut table, FIRST_PKEY, &DEFAULT_PKEY.to_be_bytes());
        }
        table
    }
}
