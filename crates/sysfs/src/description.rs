//! The description of a device: every value that sysfs shows, in the units and names of the field.

use std::fmt;

use crate::pci::PciFunction;

/// One HCA.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceDescription {
    /// Name, such as `peerdma0`.
    pub name: String,
    /// Node GUID as an integer whose most significant byte comes first on the wire.
    pub node_guid: u64,
    /// System image GUID, likewise.
    pub sys_image_guid: u64,
    /// Node description, 64 bytes at most.
    pub node_desc: String,
    /// Board identity, `board_id`.
    pub board_id: String,
    /// Firmware version, such as `1.0.0`.
    pub fw_ver: String,
    /// Device type, `hca_type`.
    pub hca_type: String,
    /// Hardware revision.
    pub hw_rev: u32,
    /// Index of the uverbs node: 0 is `uverbs0`.
    pub uverbs_index: u32,
    /// Ports, the first is port 1.
    pub ports: Vec<Port>,
    /// Ports after these, which show the same as the last of them and are links to it.
    pub twin_ports: u32,
    /// The PCI function the device sits on.
    pub pci: PciFunction,
    /// Network interfaces shown below `device/net`.
    pub netdevs: Vec<String>,
}

/// One port.
#[derive(Clone, PartialEq, Debug)]
pub struct Port {
    /// Logical state.
    pub state: PortState,
    /// Physical state.
    pub phys_state: PhysState,
    /// Link layer.
    pub link_layer: LinkLayer,
    /// Signalling rate.
    pub rate: Rate,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// LID mask count.
    pub lid_mask_count: u8,
    /// Subnet manager's LID; 0 on Ethernet.
    pub sm_lid: u16,
    /// Subnet manager's service level.
    pub sm_sl: u8,
    /// Port capability mask.
    pub cap_mask: u32,
    /// Length of the GID table; entries not in `gids` are empty.
    pub gid_table_len: u32,
    /// Occupied GID table entries.
    pub gids: Vec<Gid>,
    /// P_Key table, index 0 first.
    pub pkeys: Vec<u16>,
    /// Values of `counters/`; the standard names not given read 0.
    pub counters: Vec<Counter>,
    /// Values of `hw_counters/`.
    pub hw_counters: Vec<Counter>,
}

/// One occupied GID table entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gid {
    /// Table index.
    pub index: u32,
    /// The GID, in wire order.
    pub gid: [u8; 16],
    /// Network interface behind it, shown by `gid_attrs/ndevs`.
    pub ifname: String,
    /// Type as the kernel spells it: `RoCE v2`, `IB/RoCE v1`.
    pub gid_type: String,
}

/// A named counter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Counter {
    /// File name.
    pub name: String,
    /// Value.
    pub value: u64,
}

/// Logical port states, `ports/N/state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum PortState {
    Nop = 0,
    Down = 1,
    Init = 2,
    Armed = 3,
    Active = 4,
    ActiveDefer = 5,
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            PortState::Nop => "NOP",
            PortState::Down => "DOWN",
            PortState::Init => "INIT",
            PortState::Armed => "ARMED",
            PortState::Active => "ACTIVE",
            PortState::ActiveDefer => "ACTIVE_DEFER",
        };
        write!(f, "{}: {name}", *self as u8)
    }
}

/// Physical port states, `ports/N/phys_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum PhysState {
    Sleep = 1,
    Polling = 2,
    Disabled = 3,
    PortConfigurationTraining = 4,
    LinkUp = 5,
    LinkErrorRecovery = 6,
    PhyTest = 7,
}

impl fmt::Display for PhysState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            PhysState::Sleep => "Sleep",
            PhysState::Polling => "Polling",
            PhysState::Disabled => "Disabled",
            PhysState::PortConfigurationTraining => "PortConfigurationTraining",
            PhysState::LinkUp => "LinkUp",
            PhysState::LinkErrorRecovery => "LinkErrorRecovery",
            PhysState::PhyTest => "Phy Test",
        };
        write!(f, "{}: {name}", *self as u8)
    }
}

/// Link layers, `ports/N/link_layer`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum LinkLayer {
    InfiniBand,
    Ethernet,
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
        })
    }
}

/// Signalling rate of a port: lanes times the speed of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// Number of lanes: 1, 2, 4, 8 or 12.
    pub lanes: u8,
    /// Speed of one lane.
    pub lane_speed: LaneSpeed,
}

/// Speed of one lane by its InfiniBand name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum LaneSpeed {
    Sdr,
    Ddr,
    Qdr,
    Fdr10,
    Fdr,
    Edr,
    Hdr,
    Ndr,
    Xdr,
}

impl LaneSpeed {
    /// Rate in units of 100 Mbit/s and the suffix sysfs appends (none for SDR).
    fn shown(self) -> (u32, &'static str) {
        match self {
            LaneSpeed::Sdr => (25, ""),
            LaneSpeed::Ddr => (50, " DDR"),
            LaneSpeed::Qdr => (100, " QDR"),
            LaneSpeed::Fdr10 => (100, " FDR10"),
            LaneSpeed::Fdr => (140, " FDR"),
            LaneSpeed::Edr => (250, " EDR"),
            LaneSpeed::Hdr => (500, " HDR"),
            LaneSpeed::Ndr => (1000, " NDR"),
            LaneSpeed::Xdr => (2000, " XDR"),
        }
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (per_lane, suffix) = self.lane_speed.shown();
        let total = per_lane * u32::from(self.lanes);
        let tenth = match total % 10 {
            0 => String::new(),
            tenth => format!(".{tenth}"),
        };
        write!(f, "{}{tenth} Gb/sec ({}X{suffix})", total / 10, self.lanes)
    }
}

/// The names every port has below `counters/`.
pub const STANDARD_COUNTERS: [&str; 21] = [
    "VL15_dropped",
    "excessive_buffer_overrun_errors",
    "link_downed",
    "link_error_recovery",
    "local_link_integrity_errors",
    "multicast_rcv_packets",
    "multicast_xmit_packets",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_packets",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_packets",
    "port_xmit_wait",
    "symbol_error",
    "unicast_rcv_packets",
    "unicast_xmit_packets",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_read_as_linux_writes_them() {
        let rate = |lanes, lane_speed| Rate { lanes, lane_speed }.to_string();
        assert_eq!(rate(1, LaneSpeed::Sdr), "2.5 Gb/sec (1X)");
        assert_eq!(rate(4, LaneSpeed::Sdr), "10 Gb/sec (4X)");
        assert_eq!(rate(4, LaneSpeed::Fdr), "56 Gb/sec (4X FDR)");
        assert_eq!(rate(4, LaneSpeed::Edr), "100 Gb/sec (4X EDR)");
        assert_eq!(rate(4, LaneSpeed::Ndr), "400 Gb/sec (4X NDR)");
    }

    #[test]
    fn states_read_as_linux_writes_them() {
        assert_eq!(PortState::Active.to_string(), "4: ACTIVE");
        assert_eq!(PortState::Down.to_string(), "1: DOWN");
        assert_eq!(PhysState::LinkUp.to_string(), "5: LinkUp");
        assert_eq!(PhysState::Disabled.to_string(), "3: Disabled");
    }
}
