//! Records of nodes, ports and links (IBA 15.2.5): what is there, as administration answers it.

use crate::smp::sm_info;
use crate::view::View;
use hca::subnet::MANAGER_LID;
use wire::field::be32;
use wire::mad::sa::{
    LinkRecord, NodeRecord, PortInfoRecord, SmInfoRecord, SwitchInfoRecord, Template,
};

/// Bit in the modifier of a request for ports: they may have more capabilities than those named.
const CAPABILITIES_AMONG: u32 = 1 << 31;

impl View {
    /// Every node that a request wants.
    pub(crate) fn node_records(&self, wanted: &Template<'_>) -> Vec<Vec<u8>> {
        let records = self.nodes().map(|(lid, node)| {
            let info = node.info(*node.port_numbers().start());
            NodeRecord { lid, info, description: node.description() }.emit().to_vec()
        });
        records.filter(|record| wanted.matches(record, &NodeRecord::COMPONENTS)).collect()
    }

    /// Every port that a request wants.
    pub(crate) fn port_records(&self, wanted: &Template<'_>, modifier: u32) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        for (lid, node) in self.nodes() {
            for port in node.port_numbers() {
                let Some(info) = node.port_info(port, port) else { continue };
                records.push(PortInfoRecord { lid, port, info }.emit().to_vec());
            }
        }
        let capable = |record: &[u8]| {
            let has = be32(record, PortInfoRecord::CAPABILITIES_AT);
            let asked = be32(wanted.record, PortInfoRecord::CAPABILITIES_AT);
            !wanted.names(PortInfoRecord::CAPABILITIES)
                || has == asked
                || modifier & CAPABILITIES_AMONG != 0 && has & asked == asked
        };
        records.retain(|record| {
            wanted.matches(record, &PortInfoRecord::COMPONENTS) && capable(record)
        });
        records
    }

    /// Each cable that a request wants, from both its ends.
    pub(crate) fn link_records(&self, wanted: &Template<'_>) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        for port in &self.ports {
            let Some(at_switch) = self.switch_port_of(port.lid) else { continue };
            let ends = [(port.lid, 1), (MANAGER_LID, at_switch)];
            for (from, to) in [(ends[0], ends[1]), (ends[1], ends[0])] {
                let ((from_lid, from_port), (to_lid, to_port)) = (from, to);
                let record = LinkRecord { from_lid, from_port, to_port, to_lid };
                records.push(record.emit().to_vec());
            }
        }
        records.retain(|record| wanted.matches(record, &LinkRecord::COMPONENTS));
        records
    }

    /// The manager, if a request wants it.
    pub(crate) fn sm_records(&self, wanted: &Template<'_>) -> Vec<Vec<u8>> {
        let record = SmInfoRecord { lid: MANAGER_LID, info: sm_info() };
        let mut records = vec![record.emit().to_vec()];
        records.retain(|record| wanted.matches(record, &SmInfoRecord::COMPONENTS));
        records
    }

    /// The switch, if a request wants it.
    pub(crate) fn switch_records(&self, wanted: &Template<'_>) -> Vec<Vec<u8>> {
        let info = self.switch().switch_info().unwrap_or_default();
        let mut records = vec![SwitchInfoRecord { lid: MANAGER_LID, info }.emit().to_vec()];
        records.retain(|record| wanted.matches(record, &SwitchInfoRecord::COMPONENTS));
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::MANAGER_GUID;
    use crate::view::tests::view;

    #[test]
    fn every_node_and_port_has_a_record() {
        let view = view();
        let all = Template { mask: 0, record: &[] };
        let nodes = view.node_records(&all);
        let guids: Vec<u64> =
            nodes.iter().map(|node| NodeRecord::parse(node).info.node_guid).collect();
        assert_eq!(guids, [MANAGER_GUID, 0x70, 0x90]);
        assert_eq!(view.port_records(&all, 0).len(), 3 + 2);
        assert_eq!(view.link_records(&all).len(), 4);
    }

    #[test]
    fn components_choose() {
        let view = view();
        let mut wanted = NodeRecord::parse(&[]);
        wanted.lid = 9;
        let record = wanted.emit();
        let nodes = view.node_records(&Template { mask: 1, record: &record });
        assert_eq!(nodes.iter().map(|node| NodeRecord::parse(node).lid).collect::<Vec<_>>(), [9]);
        wanted.description = view.switch().description();
        let record = wanted.emit();
        let by_name = Template { mask: 1 << 14, record: &record };
        assert_eq!(view.node_records(&by_name).len(), 1);
        // Who is a subnet manager?
        let mut manager = PortInfoRecord::parse(&[]);
        manager.info.capabilities = 2;
        let record = manager.emit();
        let among = Template { mask: 1 << 7, record: &record };
        let ports = view.port_records(&among, CAPABILITIES_AMONG);
        assert_eq!(
            ports.iter().map(|port| PortInfoRecord::parse(port).lid).collect::<Vec<_>>(),
            [MANAGER_LID]
        );
        assert!(view.port_records(&among, 0).is_empty());
    }
}
