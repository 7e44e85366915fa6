//! Nodes as attributes of subnet management show them: channel adapters of one port, and the switch between them (IBA 14.2.5).

use crate::bytes::put;
use crate::view::{MANAGER_GUID, PKEY, View};
use hca::subnet::{MANAGER_LID, PREFIX};

/// What channel adapters are called.
pub const ADAPTER_DESCRIPTION: &[u8] = b"peerdma software ConnectX";
const SWITCH_DESCRIPTION: &[u8] = b"peerdma software switch";
/// Bytes of an attribute.
pub(crate) const ATTRIBUTE_LEN: usize = 64;
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
        /// Of node and port.
        guid: u64,
        /// Of the port.
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
        put(&mut description, 0, text);
        description
    }

    /// NodeInfo (IBA 14.2.5.3), asked through `local_port`.
    pub(crate) fn info(self, local_port: u8) -> [u8; ATTRIBUTE_LEN] {
        let mut info = [0; ATTRIBUTE_LEN];
        let (kind, ports, pkeys, device) = match self {
            Node::Adapter { .. } => (1, 1, ADAPTER_PKEYS, ADAPTER_DEVICE),
            Node::Switch { ports } => (2, ports, 1, 0),
        };
        put(&mut info, 0, &[1, 1, kind, ports]); // versions before it
        for at in [4, 12, 20] {
            put(&mut info, at, &self.guid().to_be_bytes());
        }
        put(&mut info, 28, &pkeys.to_be_bytes());
        put(&mut info, 30, &device.to_be_bytes());
        info[36] = local_port;
        put(&mut info, 37, &VENDOR);
        info
    }

    /// SwitchInfo (IBA 14.2.5.4).
    pub(crate) fn switch_info(self) -> Option<[u8; ATTRIBUTE_LEN]> {
        let Node::Switch { .. } = self else { return None };
        let mut info = [0; ATTRIBUTE_LEN];
        put(&mut info, 0, &0xc000_u16.to_be_bytes()); // unicast LIDs
        put(&mut info, 4, &0x3fff_u16.to_be_bytes()); // multicast LIDs
        put(&mut info, 6, &MANAGER_LID.to_be_bytes()); // the highest in use
        info[16] = 0x08; // port 0 is as able as others
        Some(info)
    }

    /// PortInfo (IBA 14.2.5.6) of its port with this number, asked through `local_port`.
    pub(crate) fn port_info(self, number: u8, local_port: u8) -> Option<[u8; ATTRIBUTE_LEN]> {
        if !self.port_numbers().contains(&number) {
            return None;
        }
        let (lid, capabilities) = match self {
            Node::Adapter { lid, capabilities, .. } => (lid, capabilities),
            Node::Switch { .. } if number == 0 => (MANAGER_LID, SWITCH_CAPABILITIES),
            // The other ports of a switch have no LID.
            Node::Switch { .. } => (0, 0),
        };
        let mut info = [0; ATTRIBUTE_LEN];
        if lid != 0 {
            put(&mut info, 8, &PREFIX.to_be_bytes());
            put(&mut info, 16, &lid.to_be_bytes());
            put(&mut info, 18, &MANAGER_LID.to_be_bytes());
            put(&mut info, 20, &capabilities.to_be_bytes());
            info[50] = 1; // one GUID
            info[51] = SUBNET_TIMEOUT;
        }
        info[28] = local_port;
        info[29..32].fill(WIDTH_4X);
        info[32] = SPEEDS << 4 | ACTIVE;
        info[33] = LINK_UP << 4 | POLLING;
        info[35] = SPEED_10 << 4 | SPEEDS;
        info[36] = MTU_4096 << 4;
        info[37] = ONE_LANE << 4;
        info[41] = MTU_4096;
        info[43] = ONE_LANE << 4;
        info[62] = SPEED_NDR << 4 | EXTENDED_SPEEDS;
        info[63] = EXTENDED_SPEEDS;
        Some(info)
    }

    /// GUIDInfo (IBA 14.2.5.5): the block of eight that `block` names.
    pub(crate) fn guid_info(self, block: u32) -> [u8; ATTRIBUTE_LEN] {
        let mut info = [0; ATTRIBUTE_LEN];
        if block == 0 {
            put(&mut info, 0, &self.guid().to_be_bytes());
        }
        info
    }

    /// P_KeyTable (IBA 14.2.5.7): the block of 32 that `block` names.
    pub(crate) fn pkey_table(self, block: u32) -> [u8; ATTRIBUTE_LEN] {
        let mut table = [0; ATTRIBUTE_LEN];
        if block == 0 {
            put(&mut table, 0, &PKEY.to_be_bytes());
        }
        table
    }
}
