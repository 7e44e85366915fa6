//! PortInfo (IBA 14.2.5.6): what a port is and what it is set to, as far as it is used.

use super::smp::ATTRIBUTE_LEN;
use crate::field::{be16, be32, be64, byte, put};

/// Where the fields stand. Two of four bits share a byte, the first in its upper half.
pub mod field {
    use crate::field::Field;

    /// Prefix of the port's GIDs.
    pub const GID_PREFIX: Field = 8..16;
    /// LID of the port.
    pub const LID: Field = 16..18;
    /// LID of the subnet manager.
    pub const MASTER_SM_LID: Field = 18..20;
    /// What the port can do.
    pub const CAPABILITY_MASK: Field = 20..24;
    /// The port that is asked.
    pub const LOCAL_PORT: usize = 28;
    /// Widths that the link may have.
    pub const WIDTH_ENABLED: usize = 29;
    /// Widths that the port is able of.
    pub const WIDTH_SUPPORTED: usize = 30;
    /// The width that the link has.
    pub const WIDTH_ACTIVE: usize = 31;
    /// Supported speeds, and the state of the port.
    pub const SPEED_SUPPORTED_AND_STATE: usize = 32;
    /// State of the link, and the state that it falls back to.
    pub const PHYSICAL_STATE_AND_DEFAULT: usize = 33;
    /// The speed that the link has, and those that it may have.
    pub const SPEED_ACTIVE_AND_ENABLED: usize = 35;
    /// MTU of the link, and the service level of the manager.
    pub const NEIGHBOR_MTU: usize = 36;
    /// Virtual lanes that the port is able of.
    pub const VL_CAP: usize = 37;
    /// The largest MTU.
    pub const MTU_CAP: usize = 41;
    /// Virtual lanes in use.
    pub const OPERATIONAL_VLS: usize = 43;
    /// Entries of the GUID table.
    pub const GUID_CAP: usize = 50;
    /// How long a trap's way takes: 4.096 µs · 2^n.
    pub const SUBNET_TIMEOUT: usize = 51;
    /// The extended speed that the link has, and those that the port is able of.
    pub const SPEED_EXT_ACTIVE_AND_SUPPORTED: usize = 62;
    /// Extended speeds that the link may have.
    pub const SPEED_EXT_ENABLED: usize = 63;
}

/// PortInfo. Codes and sets of bits are those of the specification.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortInfo {
    /// Prefix of the port's GIDs.
    pub gid_prefix: u64,
    /// LID of the port.
    pub lid: u16,
    /// LID of the subnet manager.
    pub master_sm_lid: u16,
    /// What the port can do.
    pub capabilities: u32,
    /// The port that is asked.
    pub local_port: u8,
    /// Widths that the link may have.
    pub width_enabled: u8,
    /// Widths that the port is able of.
    pub width_supported: u8,
    /// The width that the link has.
    pub width_active: u8,
    /// Speeds that the port is able of, 4 bits.
    pub speed_supported: u8,
    /// Speeds that the link may have, 4 bits.
    pub speed_enabled: u8,
    /// The speed that the link has, 4 bits.
    pub speed_active: u8,
    /// State of the port, 4 bits.
    pub state: u8,
    /// State of the link, 4 bits.
    pub physical_state: u8,
    /// State that the link falls back to, 4 bits.
    pub down_default_state: u8,
    /// MTU of the link, 4 bits.
    pub neighbor_mtu: u8,
    /// The largest MTU, 4 bits.
    pub mtu_cap: u8,
    /// Virtual lanes that the port is able of, 4 bits.
    pub vl_cap: u8,
    /// Virtual lanes in use, 4 bits.
    pub operational_vls: u8,
    /// Entries of the GUID table.
    pub guid_cap: u8,
    /// How long a trap's way takes, 5 bits.
    pub subnet_timeout: u8,
    /// Extended speeds that the port is able of, 4 bits.
    pub speed_ext_supported: u8,
    /// Extended speeds that the link may have, 5 bits.
    pub speed_ext_enabled: u8,
    /// The extended speed that the link has, 4 bits.
    pub speed_ext_active: u8,
}

impl PortInfo {
    /// What an attribute says; what is not there is zero.
    pub fn parse(data: &[u8]) -> PortInfo {
        let high = |at| byte(data, at) >> 4;
        let low = |at| byte(data, at) & 0xf;
        PortInfo {
            gid_prefix: be64(data, field::GID_PREFIX),
            lid: be16(data, field::LID),
            master_sm_lid: be16(data, field::MASTER_SM_LID),
            capabilities: be32(data, field::CAPABILITY_MASK),
            local_port: byte(data, field::LOCAL_PORT),
            width_enabled: byte(data, field::WIDTH_ENABLED),
            width_supported: byte(data, field::WIDTH_SUPPORTED),
            width_active: byte(data, field::WIDTH_ACTIVE),
            speed_supported: high(field::SPEED_SUPPORTED_AND_STATE),
            speed_enabled: low(field::SPEED_ACTIVE_AND_ENABLED),
            speed_active: high(field::SPEED_ACTIVE_AND_ENABLED),
            state: low(field::SPEED_SUPPORTED_AND_STATE),
            physical_state: high(field::PHYSICAL_STATE_AND_DEFAULT),
            down_default_state: low(field::PHYSICAL_STATE_AND_DEFAULT),
            neighbor_mtu: high(field::NEIGHBOR_MTU),
            mtu_cap: low(field::MTU_CAP),
            vl_cap: high(field::VL_CAP),
            operational_vls: high(field::OPERATIONAL_VLS),
            guid_cap: byte(data, field::GUID_CAP),
            subnet_timeout: byte(data, field::SUBNET_TIMEOUT) & 0x1f,
            speed_ext_supported: low(field::SPEED_EXT_ACTIVE_AND_SUPPORTED),
            speed_ext_enabled: byte(data, field::SPEED_EXT_ENABLED) & 0x1f,
            speed_ext_active: high(field::SPEED_EXT_ACTIVE_AND_SUPPORTED),
        }
    }

    /// The attribute.
    pub fn emit(&self) -> [u8; ATTRIBUTE_LEN] {
        let mut out = [0; ATTRIBUTE_LEN];
        put(&mut out, field::GID_PREFIX, &self.gid_prefix.to_be_bytes());
        put(&mut out, field::LID, &self.lid.to_be_bytes());
        put(&mut out, field::MASTER_SM_LID, &self.master_sm_lid.to_be_bytes());
        put(&mut out, field::CAPABILITY_MASK, &self.capabilities.to_be_bytes());
        for (at, value) in [
            (field::LOCAL_PORT, self.local_port),
            (field::WIDTH_ENABLED, self.width_enabled),
            (field::WIDTH_SUPPORTED, self.width_supported),
            (field::WIDTH_ACTIVE, self.width_active),
            (field::SPEED_SUPPORTED_AND_STATE, nibbles(self.speed_supported, self.state)),
            (
                field::PHYSICAL_STATE_AND_DEFAULT,
                nibbles(self.physical_state, self.down_default_state),
            ),
            (field::SPEED_ACTIVE_AND_ENABLED, nibbles(self.speed_active, self.speed_enabled)),
            (field::NEIGHBOR_MTU, nibbles(self.neighbor_mtu, 0)),
            (field::VL_CAP, nibbles(self.vl_cap, 0)),
            (field::MTU_CAP, nibbles(0, self.mtu_cap)),
            (field::OPERATIONAL_VLS, nibbles(self.operational_vls, 0)),
            (field::GUID_CAP, self.guid_cap),
            (field::SUBNET_TIMEOUT, self.subnet_timeout & 0x1f),
            (
                field::SPEED_EXT_ACTIVE_AND_SUPPORTED,
                nibbles(self.speed_ext_active, self.speed_ext_supported),
            ),
            (field::SPEED_EXT_ENABLED, self.speed_ext_enabled & 0x1f),
        ] {
            out[at] = value;
        }
        out
    }
}

/// A byte of two fields.
fn nibbles(high: u8, low: u8) -> u8 {
    high << 4 | low & 0xf
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_info_is_laid_out_as_specified() {
        let info = PortInfo {
            gid_prefix: 0xfe80_0000_0000_0000,
            lid: 0x0102,
            master_sm_lid: 0x0304,
            capabilities: 0x0506_0708,
            local_port: 9,
            width_enabled: 10,
            width_supported: 11,
            width_active: 12,
            speed_supported: 7,
            speed_enabled: 6,
            speed_active: 4,
            state: 3,
            physical_state: 5,
            down_default_state: 2,
            neighbor_mtu: 5,
            mtu_cap: 4,
            vl_cap: 3,
            operational_vls: 1,
            guid_cap: 8,
            subnet_timeout: 18,
            speed_ext_supported: 15,
            speed_ext_enabled: 30,
            speed_ext_active: 8,
        };
        let bytes = info.emit();
        assert_eq!(bytes[..10], [0, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0x80]);
        assert_eq!(bytes[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[28..38], [9, 10, 11, 12, 0x73, 0x52, 0, 0x46, 0x50, 0x30]);
        assert_eq!((bytes[41], bytes[43], bytes[50], bytes[51]), (4, 0x10, 8, 18));
        assert_eq!(bytes[62..], [0x8f, 30]);
        assert_eq!(PortInfo::parse(&bytes), info);
        assert_eq!(PortInfo::parse(&bytes[..16]).lid, 0);
    }
}
