//! Subnet management (IBA 14): what nodes answer to datagrams at QP 0, by LID and by directed
//! route.
//!
//! A manager of a user's own may look at everything. What it sets stays as it is, and the answer
//! says so.

use crate::Mad;
use crate::view::{MANAGER_GUID, View};
use hca::subnet::MANAGER_LID;
use wire::field::{be16, be32, put};
use wire::mad::smp::{ATTRIBUTE_LEN, MOST_HOPS, RETURNS, SmInfo, attribute, field};
use wire::mad::{class, field as header, method, status};

pub use crate::nodes::{ADAPTER_CAPABILITIES, ADAPTER_DESCRIPTION, Node};
pub use wire::mad::smp::CLASSES;

/// What the manager is: the master, with the highest priority.
pub(crate) fn sm_info() -> SmInfo {
    SmInfo { guid: MANAGER_GUID, priority: 15, state: SmInfo::MASTER }
}

/// What a node answers of itself to a datagram that reached it through its port `local_port`;
/// `None` to one that is no request.
pub fn answer_of(node: Node, local_port: u8, mad: &Mad) -> Option<Mad> {
    let mut answer = *mad;
    let (number, modifier) =
        (be16(mad, header::ATTRIBUTE_ID), be32(mad, header::ATTRIBUTE_MODIFIER));
    let status = match mad[header::METHOD] {
        method::GET | method::SET => match attribute_of(node, local_port, number, modifier) {
            Ok(data) => {
                put(&mut answer, field::DATA, &data);
                0
            }
            Err(status) => status,
        },
        other if other & method::RESPONSE != 0 => return None,
        // A trap's repression is answered by nobody, and there are no traps.
        _ => status::BAD_METHOD,
    };
    answer[header::METHOD] = method::GET_RESPONSE;
    let returns = if mad[header::CLASS] == class::DIRECTED_ROUTE { RETURNS } else { 0 };
    put(&mut answer, header::STATUS, &(status | returns).to_be_bytes());
    Some(answer)
}

fn attribute_of(
    node: Node,
    local_port: u8,
    number: u16,
    modifier: u32,
) -> Result<[u8; ATTRIBUTE_LEN], u16> {
    match number {
        attribute::NODE_DESCRIPTION => Ok(node.description()),
        attribute::NODE_INFO => Ok(node.info(local_port).emit()),
        attribute::SWITCH_INFO => {
            node.switch_info().map(|info| info.emit()).ok_or(status::BAD_ATTRIBUTE)
        }
        attribute::GUID_INFO => Ok(node.guid_info(modifier)),
        attribute::PORT_INFO => {
            let asked = modifier as u8;
            let own = matches!(node, Node::Adapter { .. }) && asked == 0;
            let asked = if own { local_port } else { asked };
            node.port_info(asked, local_port).map(|info| info.emit()).ok_or(status::BAD_FIELD)
        }
        // The block is in the lower half; of a switch, the port is in the upper.
        attribute::PKEY_TABLE => Ok(node.pkey_table(modifier & 0xffff)),
        attribute::SM_INFO if matches!(node, Node::Switch { .. }) => Ok(sm_info().emit()),
        _ => Err(status::BAD_ATTRIBUTE),
    }
}

impl View {
    /// Answers a datagram that port `source` sent to QP 0 of the manager, or to the port that
    /// looks. `None` to one that is no request, or goes nowhere.
    pub fn answer_smp(&self, source: u16, to_manager: bool, mad: &Mad) -> Option<Mad> {
        match mad[header::CLASS] {
            class::DIRECTED_ROUTE if to_manager => self.directed(source, mad),
            class::SUBNET_MANAGEMENT => {
                let node = self.node_at(if to_manager { MANAGER_LID } else { self.own })?;
                // Behind the switch's port 0 is the manager.
                self.answer_at(node, if to_manager { 0 } else { 1 }, mad)
            }
            _ => None,
        }
    }

    fn answer_at(&self, node: Node, local_port: u8, mad: &Mad) -> Option<Mad> {
        let forwards = matches!(node, Node::Switch { .. })
            && mad[header::METHOD] == method::GET
            && be16(mad, header::ATTRIBUTE_ID) == attribute::FORWARDING_TABLE;
        if !forwards {
            return answer_of(node, local_port, mad);
        }
        let mut answer = answer_of(node, local_port, mad)?;
        put(
            &mut answer,
            field::DATA,
            &self.forwarding_table(be32(mad, header::ATTRIBUTE_MODIFIER)),
        );
        let returns = be16(&answer, header::STATUS) & RETURNS;
        put(&mut answer, header::STATUS, &returns.to_be_bytes());
        Some(answer)
    }

    /// LinearForwardingTable (IBA 14.2.5.10): the switch's port for each of 64 LIDs.
    fn forwarding_table(&self, block: u32) -> [u8; ATTRIBUTE_LEN] {
        const NOWHERE: u8 = 0xff;
        std::array::from_fn(|index| {
            let lid = u64::from(block) * ATTRIBUTE_LEN as u64 + index as u64;
            match u16::try_from(lid) {
                Ok(MANAGER_LID) => 0,
                Ok(lid) => self.switch_port_of(lid).unwrap_or(NOWHERE),
                Err(_) => NOWHERE,
            }
        })
    }

    /// Follows a directed route from port `source`, whose first hop leads to the switch (IBA
    /// 14.2.2).
    fn directed(&self, source: u16, mad: &Mad) -> Option<Mad> {
        let hops = usize::from(mad[field::HOP_COUNT]);
        let returns = be16(mad, header::STATUS) & RETURNS != 0;
        if mad[field::HOP_POINTER] != 1 || !(1..=MOST_HOPS).contains(&hops) || returns {
            return None;
        }
        let mut mad = *mad;
        let mut node = self.switch();
        let mut local_port = self.switch_port_of(source)?;
        mad[field::RETURN_PATH][1] = local_port;
        for hop in 2..=hops {
            // Nothing leads on from an adapter.
            let Node::Switch { .. } = node else { return None };
            let [next, back] =
                [field::INITIAL_PATH, field::RETURN_PATH].map(|path| path.start + hop);
            node = self.behind(mad[next])?;
            local_port = 1;
            mad[back] = local_port;
        }
        let mut answer = self.answer_at(node, local_port, &mad)?;
        // Back at the port that asked.
        answer[field::HOP_POINTER] = 1;
        Some(answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;
    use wire::mad::Header;
    use wire::mad::port_info::PortInfo;
    use wire::mad::smp::{NodeInfo, VERSION, node_type};

    const BY_LID: u8 = class::SUBNET_MANAGEMENT;

    fn ask(class: u8, number: u16, modifier: u32) -> Mad {
        let (class_version, method) = (VERSION, method::GET);
        let header = Header {
            class,
            class_version,
            method,
            attribute: number,
            modifier,
            ..Header::default()
        };
        header.alone()
    }

    fn data(mad: &Mad) -> &[u8] {
        &mad[field::DATA]
    }

    fn directed(path: &[u8], number: u16, modifier: u32) -> Mad {
        let mut mad = ask(class::DIRECTED_ROUTE, number, modifier);
        mad[field::HOP_POINTER] = 1;
        mad[field::HOP_COUNT] = path.len() as u8;
        mad[field::INITIAL_PATH][1..1 + path.len()].copy_from_slice(path);
        mad
    }

    #[test]
    fn a_directed_route_leads_to_the_switch_and_through_it() {
        let view = view();
        let switch = view.answer_smp(7, true, &directed(&[1], attribute::NODE_INFO, 0)).unwrap();
        assert_eq!(switch[header::METHOD], method::GET_RESPONSE);
        assert_eq!(be16(&switch, header::STATUS), RETURNS);
        let info = NodeInfo::parse(data(&switch));
        assert_eq!((info.node_type, info.ports, info.local_port), (node_type::SWITCH, 2, 1));
        let other = directed(&[1, 2], attribute::NODE_INFO, 0);
        let other = view.answer_smp(7, true, &other).unwrap();
        let info = NodeInfo::parse(data(&other));
        assert_eq!((info.node_type, info.node_guid), (node_type::CHANNEL_ADAPTER, 0x90));
        assert_eq!(other[field::RETURN_PATH][1..3], [1, 1]);
        for nowhere in [&[1, 3][..], &[1, 0], &[1, 2, 1], &[]] {
            let mad = directed(nowhere, attribute::NODE_INFO, 0);
            assert_eq!(view.answer_smp(7, true, &mad), None, "{nowhere:?}");
        }
    }

    #[test]
    fn ports_say_where_they_and_the_manager_are() {
        let view = view();
        let own = view.answer_smp(9, false, &ask(BY_LID, attribute::PORT_INFO, 1)).unwrap();
        let info = PortInfo::parse(data(&own));
        assert_eq!((info.lid, info.master_sm_lid), (7, MANAGER_LID));
        let manager = view.answer_smp(9, true, &ask(BY_LID, attribute::SM_INFO, 0)).unwrap();
        let info = SmInfo::parse(data(&manager));
        assert_eq!((info.guid, info.state), (MANAGER_GUID, SmInfo::MASTER));
        let table = ask(BY_LID, attribute::FORWARDING_TABLE, 0);
        let table = view.answer_smp(9, true, &table).unwrap();
        assert_eq!((data(&table)[7], data(&table)[9], data(&table)[8]), (1, 2, 0xff));
    }

    #[test]
    fn what_no_node_has_is_refused_and_answers_are_not_answered() {
        let view = view();
        let status_of = |mad: &Mad| be16(&view.answer_smp(7, true, mad).unwrap(), header::STATUS);
        assert_eq!(status_of(&ask(BY_LID, 0x7777, 0)), status::BAD_ATTRIBUTE);
        assert_eq!(status_of(&ask(BY_LID, attribute::PORT_INFO, 3)), status::BAD_FIELD);
        let mut answered = ask(BY_LID, attribute::NODE_INFO, 0);
        answered[header::METHOD] = method::GET_RESPONSE;
        assert_eq!(view.answer_smp(7, true, &answered), None);
    }
}
