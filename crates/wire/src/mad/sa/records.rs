//! Records of nodes, ports, links, managers and switches (IBA 15.2.5): mostly a LID before an
//! attribute of subnet management.

use super::component::Component;
use crate::field::{Field, be16, byte, get, put};
use crate::mad::port_info;
use crate::mad::smp::{ATTRIBUTE_LEN, NodeInfo, SmInfo, SwitchInfo};

/// The place of an attribute's field in a record that has the attribute behind its first word.
const fn behind_lid(field: Field) -> Field {
    4 + field.start..4 + field.end
}

/// NodeRecord (IBA 15.2.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeRecord {
    /// LID of the port.
    pub lid: u16,
    /// What the node is.
    pub info: NodeInfo,
    /// What it is called.
    pub description: [u8; ATTRIBUTE_LEN],
}

impl NodeRecord {
    /// Length of the record, in bytes.
    pub const LEN: usize = NodeRecord::DESCRIPTION_AT.end;

    const LID_AT: Field = 0..2;
    const INFO_AT: Field = 4..4 + NodeInfo::LEN;
    const DESCRIPTION_AT: Field = 44..108;

    /// The description, a component.
    pub const DESCRIPTION: Component = Component::bytes(14, NodeRecord::DESCRIPTION_AT);
    /// The components that a request may name.
    pub const COMPONENTS: [Component; 7] = [
        Component::bytes(0, NodeRecord::LID_AT),
        Component::bytes(4, behind_lid(NodeInfo::NODE_TYPE..NodeInfo::NODE_TYPE + 1)),
        Component::bytes(5, behind_lid(NodeInfo::PORTS..NodeInfo::PORTS + 1)),
        Component::bytes(6, behind_lid(NodeInfo::SYSTEM_IMAGE_GUID)),
        Component::bytes(7, behind_lid(NodeInfo::NODE_GUID)),
        Component::bytes(8, behind_lid(NodeInfo::PORT_GUID)),
        NodeRecord::DESCRIPTION,
    ];

    /// What a record says; what is not there is zero.
    pub fn parse(record: &[u8]) -> NodeRecord {
        NodeRecord {
            lid: be16(record, NodeRecord::LID_AT),
            info: NodeInfo::parse(record.get(NodeRecord::INFO_AT).unwrap_or_default()),
            description: get(record, NodeRecord::DESCRIPTION_AT),
        }
    }

    /// The record.
    pub fn emit(&self) -> [u8; NodeRecord::LEN] {
        let mut out = [0; NodeRecord::LEN];
        put(&mut out, NodeRecord::LID_AT, &self.lid.to_be_bytes());
        put(&mut out, NodeRecord::INFO_AT, &self.info.emit());
        put(&mut out, NodeRecord::DESCRIPTION_AT, &self.description);
        out
    }
}

/// PortInfoRecord (IBA 15.2.5.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortInfoRecord {
    /// LID of the node's end port.
    pub lid: u16,
    /// The port's number.
    pub port: u8,
    /// What it is.
    pub info: port_info::PortInfo,
}

impl PortInfoRecord {
    /// Length of the record, in bytes.
    pub const LEN: usize = PortInfoRecord::INFO_AT.end;

    const LID_AT: Field = 0..2;
    const PORT_AT: usize = 2;
    const INFO_AT: Field = 4..4 + ATTRIBUTE_LEN;
    /// Place of the port's capabilities.
    pub const CAPABILITIES_AT: Field = behind_lid(port_info::field::CAPABILITY_MASK);

    /// The capabilities, a component.
    pub const CAPABILITIES: Component = Component::bytes(7, PortInfoRecord::CAPABILITIES_AT);
    /// The components that a request may name, but for the capabilities.
    pub const COMPONENTS: [Component; 4] = [
        Component::bytes(0, PortInfoRecord::LID_AT),
        Component::bytes(1, PortInfoRecord::PORT_AT..PortInfoRecord::PORT_AT + 1),
        Component::bytes(5, behind_lid(port_info::field::LID)),
        Component::bytes(6, behind_lid(port_info::field::MASTER_SM_LID)),
    ];

    /// What a record says; what is not there is zero.
    pub fn parse(record: &[u8]) -> PortInfoRecord {
        PortInfoRecord {
            lid: be16(record, PortInfoRecord::LID_AT),
            port: byte(record, PortInfoRecord::PORT_AT),
            info: port_info::PortInfo::parse(record.get(4..).unwrap_or_default()),
        }
    }

    /// The record.
    pub fn emit(&self) -> [u8; PortInfoRecord::LEN] {
        let mut out = [0; PortInfoRecord::LEN];
        put(&mut out, PortInfoRecord::LID_AT, &self.lid.to_be_bytes());
        out[PortInfoRecord::PORT_AT] = self.port;
        put(&mut out, PortInfoRecord::INFO_AT, &self.info.emit());
        out
    }
}

/// LinkRecord (IBA 15.2.5.13).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkRecord {
    /// LID of one end.
    pub from_lid: u16,
    /// The port there.
    pub from_port: u8,
    /// The port at the other end.
    pub to_port: u8,
    /// LID of the other end.
    pub to_lid: u16,
}

impl LinkRecord {
    /// Length of the record, in bytes, with its padding to whole units.
    pub const LEN: usize = 8;

    const FROM_LID: Field = 0..2;
    const FROM_PORT: usize = 2;
    const TO_PORT: usize = 3;
    const TO_LID: Field = 4..6;

    /// The components that a request may name.
    pub const COMPONENTS: [Component; 4] = [
        Component::bytes(0, LinkRecord::FROM_LID),
        Component::bytes(1, LinkRecord::FROM_PORT..LinkRecord::FROM_PORT + 1),
        Component::bytes(2, LinkRecord::TO_PORT..LinkRecord::TO_PORT + 1),
        Component::bytes(3, LinkRecord::TO_LID),
    ];

    /// What a record says; what is not there is zero.
    pub fn parse(record: &[u8]) -> LinkRecord {
        LinkRecord {
            from_lid: be16(record, LinkRecord::FROM_LID),
            from_port: byte(record, LinkRecord::FROM_PORT),
            to_port: byte(record, LinkRecord::TO_PORT),
            to_lid: be16(record, LinkRecord::TO_LID),
        }
    }

    /// The record.
    pub fn emit(&self) -> [u8; LinkRecord::LEN] {
        let mut out = [0; LinkRecord::LEN];
        put(&mut out, LinkRecord::FROM_LID, &self.from_lid.to_be_bytes());
        out[LinkRecord::FROM_PORT] = self.from_port;
        out[LinkRecord::TO_PORT] = self.to_port;
        put(&mut out, LinkRecord::TO_LID, &self.to_lid.to_be_bytes());
        out
    }
}

/// SMInfoRecord (IBA 15.2.5.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SmInfoRecord {
    /// LID of the manager.
    pub lid: u16,
    /// What it is.
    pub info: SmInfo,
}

impl SmInfoRecord {
    /// Length of the record, in bytes.
    pub const LEN: usize = 4 + SmInfo::LEN;

    const LID_AT: Field = 0..2;

    /// The component that a request may name.
    pub const COMPONENTS: [Component; 1] = [Component::bytes(0, SmInfoRecord::LID_AT)];

    /// What a record says; what is not there is zero.
    pub fn parse(record: &[u8]) -> SmInfoRecord {
        SmInfoRecord {
            lid: be16(record, SmInfoRecord::LID_AT),
            info: SmInfo::parse(record.get(4..).unwrap_or_default()),
        }
    }

    /// The record.
    pub fn emit(&self) -> [u8; SmInfoRecord::LEN] {
        let mut out = [0; SmInfoRecord::LEN];
        put(&mut out, SmInfoRecord::LID_AT, &self.lid.to_be_bytes());
        put(&mut out, behind_lid(0..SmInfo::LEN), &self.info.emit());
        out
    }
}

/// SwitchInfoRecord (IBA 15.2.5.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwitchInfoRecord {
    /// LID of the switch.
    pub lid: u16,
    /// What it is.
    pub info: SwitchInfo,
}

impl SwitchInfoRecord {
    /// Length of the record, in bytes.
    pub const LEN: usize = 4 + SwitchInfo::LEN;

    const LID_AT: Field = 0..2;

    /// The component that a request may name.
    pub const COMPONENTS: [Component; 1] = [Component::bytes(0, SwitchInfoRecord::LID_AT)];

    /// What a record says; what is not there is zero.
    pub fn parse(record: &[u8]) -> SwitchInfoRecord {
        SwitchInfoRecord {
            lid: be16(record, SwitchInfoRecord::LID_AT),
            info: SwitchInfo::parse(record.get(4..).unwrap_or_default()),
        }
    }

    /// The record.
    pub fn emit(&self) -> [u8; SwitchInfoRecord::LEN] {
        let mut out = [0; SwitchInfoRecord::LEN];
        put(&mut out, SwitchInfoRecord::LID_AT, &self.lid.to_be_bytes());
        put(&mut out, behind_lid(0..SwitchInfo::LEN), &self.info.emit());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::port_info::PortInfo;

    #[test]
    fn records_are_read_and_made() {
        let info = NodeInfo { node_type: 2, ports: 3, node_guid: 4, ..NodeInfo::default() };
        let node = NodeRecord { lid: 0x0102, info, description: [5; 64] };
        let bytes = node.emit();
        assert_eq!(bytes[..8], [1, 2, 0, 0, 1, 1, 2, 3]);
        assert_eq!((bytes[23], bytes[43], bytes[44], bytes[107]), (4, 0, 5, 5));
        assert_eq!(NodeRecord::parse(&bytes), node);

        let info = PortInfo { lid: 7, ..PortInfo::default() };
        let port = PortInfoRecord { lid: 0x0304, port: 5, info };
        let bytes = port.emit();
        assert_eq!((bytes[..3].to_vec(), bytes[20..22].to_vec()), (vec![3, 4, 5], vec![0, 7]));
        assert_eq!(PortInfoRecord::parse(&bytes), port);

        let link = LinkRecord { from_lid: 0x0102, from_port: 3, to_port: 4, to_lid: 0x0506 };
        assert_eq!(link.emit(), [1, 2, 3, 4, 5, 6, 0, 0]);
        assert_eq!(LinkRecord::parse(&link.emit()), link);

        let manager = SmInfoRecord { lid: 9, info: SmInfo { guid: 1, priority: 2, state: 3 } };
        let bytes = manager.emit();
        assert_eq!((bytes[1], bytes[11], bytes[24]), (9, 1, 0x23));
        assert_eq!(SmInfoRecord::parse(&bytes), manager);

        let info = SwitchInfo { linear_top: 0x0a0b, ..SwitchInfo::default() };
        let switch = SwitchInfoRecord { lid: 9, info };
        let bytes = switch.emit();
        assert_eq!((bytes[1], &bytes[10..12]), (9, &[10, 11][..]));
        assert_eq!(SwitchInfoRecord::parse(&bytes), switch);
    }
}
