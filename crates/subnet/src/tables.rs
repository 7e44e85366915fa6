//! Records of nodes, ports and links (IBA 15.2.5): what is there, as administration tells it.

use crate::bytes::{be32, put};
use crate::mask::{Component, Template, bytes};
use crate::smp::sm_info;
use crate::view::View;
use hca::subnet::MANAGER_LID;

/// LID, NodeType, the GUIDs, NodeDescription.
const NODE_COMPONENTS: [(usize, Component); 7] = [
    (0, bytes(0, 2)),
    (4, bytes(6, 1)),
    (5, bytes(7, 1)),
    (6, bytes(8, 8)),
    (7, bytes(16, 8)),
    (8, bytes(24, 8)),
    (14, bytes(44, 64)),
];
const NODE_DESCRIPTION: usize = 14;
/// EndportLID, PortNum, LID, MasterSMLID.
const PORT_COMPONENTS: [(usize, Component); 4] =
    [(0, bytes(0, 2)), (1, bytes(2, 1)), (5, bytes(20, 2)), (6, bytes(22, 2))];
const PORT_CAPABILITIES: usize = 7;
const CAPABILITIES_AT: usize = 24;
/// In the modifier of a request for ports: they may have more capabilities than those named.
const CAPABILITIES_AMONG: u32 = 1 << 31;
/// From and to.
const LINK_COMPONENTS: [(usize, Component); 4] =
    [(0, bytes(0, 2)), (1, bytes(2, 1)), (2, bytes(3, 1)), (3, bytes(4, 2))];
const SM_COMPONENTS: [(usize, Component); 1] = [(0, bytes(0, 2))];

impl View {
    /// NodeRecord (IBA 15.2.5.2).
    pub(crate) fn node_records(&self, wanted: &Template<'_>) -> Vec<Vec<u8>> {
        let records = self.nodes().map(|(lid, node)| {
            let mut record = vec![0; 108];
            let local_port = *node.port_numbers().start();
            put(&mut record, 0, &lid.to_be_bytes());
            put(&mut record, 4, &node.info(local_port)[..40]);
            put(&mut record, 44, &node.description());
            record
        });
        let (description, others): (Vec<_>, Vec<_>) =
            NODE_COMPONENTS.into_iter().partition(|(number, _)| *number == NODE_DESCRIPTION);
        let described = |record: &[u8]| {
            description.is_empty()
                || !wanted.names(NODE_DESCRIPTION)
                || (44..108).all(|at| wanted.record.get(at) == record.get(at))
        };
        records.filter(|record| wanted.matches(record, &others) && described(record)).collect()
    }

    /// PortInfoRecord (IBA 15.2.5.3).
    pub(crate) fn port_records(&self, wanted: &Template<'_>, modifier: u32) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        for (lid, node) in self.nodes() {
            for number in node.port_numbers() {
                let Some(info) = node.port_info(number, number) else { continue };
                let mut record = vec![0; 68];
                put(&mut record, 0, &lid.to_be_bytes());
                record[2] = number;
                put(&mut record, 4, &info);
                records.push(record);
            }
        }
        let capable = |record: &[u8]| {
            let (has, asked) =
                (be32(record, CAPABILITIES_AT), be32(wanted.record, CAPABILITIES_AT));
            !wanted.names(PORT_CAPABILITIES)
                || has == asked
                || modifier & CAPABILITIES_AMONG != 0 && has & asked == asked
        };
        records.retain(|record| wanted.matches(record, &PORT_COMPONENTS) && capable(record));
        records
    }

    /// LinkRecord (IBA 15.2.5.13): each cable from both its ends.
    pub(crate) fn link_records(&self, wanted: &Template<'_>) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        for port in &self.ports {
            let Some(at_switch) = self.switch_port_of(port.lid) else { continue };
            let ends = [(port.lid, 1), (MANAGER_LID, at_switch)];
            for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                let mut record = vec![0; 8];
                put(&mut record, 0, &from.0.to_be_bytes());
                put(&mut record, 2, &[from.1, to.1]);
                put(&mut record, 4, &to.0.to_be_bytes());
                records.push(record);
            }
        }
        records.retain(|record| wanted.matches(record, &LINK_COMPONENTS));
        records
    }

    /// SMInfoRecord (IBA 15.2.5.6).
    pub(crate) fn sm_records(&self, wanted: &Template<'_>) -> Vec<Vec<u8>> {
        let mut record = vec![0; 28];
        put(&mut record, 0, &MANAGER_LID.to_be_bytes());
        put(&mut record, 4, &sm_info()[..24]);
        let mut records = vec![record];
        records.retain(|record| wanted.matches(record, &SM_COMPONENTS));
        records
    }

    /// SwitchInfoRecord (IBA 15.2.5.5).
    pub(crate) fn switch_records(&self, wanted: &Template<'_>) -> Vec<Vec<u8>> {
        let mut record = vec![0; 24];
        put(&mut record, 0, &MANAGER_LID.to_be_bytes());
        if let Some(info) = self.switch().switch_info() {
            put(&mut record, 4, &info[..20]);
        }
        let mut records = vec![record];
        records.retain(|record| wanted.matches(record, &SM_COMPONENTS));
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bytes::{be16, be64};
    use crate::view::MANAGER_GUID;
    use crate::view::tests::view;

    #[test]
    fn every_node_and_port_is_told() {
        let view = view();
        let all = Template { mask: 0, record: &[] };
        let nodes = view.node_records(&all);
        let guids: Vec<u64> = nodes.iter().map(|node| be64(node, 16)).collect();
        assert_eq!(guids, [MANAGER_GUID, 0x70, 0x90]);
        assert_eq!(view.port_records(&all, 0).len(), 3 + 2);
        assert_eq!(view.link_records(&all).len(), 4);
    }

    #[test]
    fn components_choose() {
        let view = view();
        let mut wanted = [0; 108];
        put(&mut wanted, 0, &9_u16.to_be_bytes());
        let nodes = view.node_records(&Template { mask: 1, record: &wanted });
        assert_eq!(nodes.iter().map(|node| be16(node, 0)).collect::<Vec<_>>(), [9]);
        put(&mut wanted, 44, b"peerdma software switch");
        let by_name = Template { mask: 1 << NODE_DESCRIPTION, record: &wanted };
        assert_eq!(view.node_records(&by_name).len(), 1);
        // Who is a subnet manager?
        let mut manager = [0; 68];
        put(&mut manager, CAPABILITIES_AT, &2_u32.to_be_bytes());
        let among = Template { mask: 1 << PORT_CAPABILITIES, record: &manager };
        let ports = view.port_records(&among, CAPABILITIES_AMONG);
        assert_eq!(ports.iter().map(|port| be16(port, 0)).collect::<Vec<_>>(), [MANAGER_LID]);
        assert!(view.port_records(&among, 0).is_empty());
    }
}
