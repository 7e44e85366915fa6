//! What commands about objects of the Ethernet do to them, for the rule on whose they are (`crate::uctx`).

use super::queue::{CQ, ENTRIES, INTERFACE, PD, RECORD, WQ_BIT};
use super::{opcode, tir};
use crate::bits::Field;
use crate::uar;
use crate::uctx::Kind;

/// The transport domain in the context of an interface that sends (`tisc`).
const TIS_DOMAIN: Field = Field::new(0x100 + 0x128, 24);

/// What such a command does.
pub(crate) enum Role {
    /// Makes an object.
    Makes,
    /// Changes or asks about one.
    Names,
    /// Ends one.
    Ends,
    /// Asks about the device.
    Asks,
}

/// What users may do; steering is the driver's.
pub(crate) fn role(code: u16) -> Option<Role> {
    Some(match code {
        opcode::CREATE_TIR
        | opcode::CREATE_SQ
        | opcode::CREATE_RQ
        | opcode::CREATE_TIS
        | opcode::CREATE_RQT => Role::Makes,
        opcode::MODIFY_TIR
        | opcode::MODIFY_SQ
        | opcode::QUERY_SQ
        | opcode::MODIFY_RQ
        | opcode::QUERY_RQ
        | opcode::MODIFY_TIS
        | opcode::QUERY_TIS
        | opcode::MODIFY_RQT => Role::Names,
        opcode::DESTROY_TIR
        | opcode::DESTROY_SQ
        | opcode::DESTROY_RQ
        | opcode::DESTROY_TIS
        | opcode::DESTROY_RQT => Role::Ends,
        opcode::QUERY_VPORT_STATE | opcode::QUERY_NIC_VPORT_CONTEXT => Role::Asks,
        _ => return None,
    })
}

/// Whether what a command makes sends whatever frames its user puts together.
pub(crate) fn sends_frames(code: u16) -> bool {
    code == opcode::CREATE_SQ
}

/// Other objects that a command names.
pub(crate) fn named(code: u16, input: &[u8]) -> Vec<(Kind, u32)> {
    let at = |kind, field: Field| match field.get32(input) {
        0 => None,
        number => Some((kind, number)),
    };
    match code {
        opcode::CREATE_SQ | opcode::CREATE_RQ => {
            let memories = [ENTRIES, RECORD].into_iter().filter_map(|place| place.number(input));
            let sends = code == opcode::CREATE_SQ;
            let interface = at(Kind::Nic, INTERFACE).filter(|_| sends);
            let page = at(Kind::Uar, uar::IN_CONTEXT.at(WQ_BIT)).filter(|_| sends);
            let queue = [at(Kind::Cq, CQ), at(Kind::Pd, PD), interface, page].into_iter().flatten();
            queue.chain(memories.map(|number| (Kind::UserMemory, number))).collect()
        }
        opcode::CREATE_TIS | opcode::MODIFY_TIS => {
            at(Kind::TransportDomain, TIS_DOMAIN).into_iter().collect()
        }
        opcode::CREATE_TIR | opcode::MODIFY_TIR => {
            let domain = at(Kind::TransportDomain, tir::DOMAIN);
            let to = [at(Kind::Nic, tir::QUEUE), at(Kind::Nic, tir::TABLE)];
            to.into_iter().chain([domain]).flatten().collect()
        }
        opcode::CREATE_RQT | opcode::MODIFY_RQT => {
            let queues = tir::table(input).unwrap_or_default();
            queues.into_iter().map(|queue| (Kind::Nic, queue)).collect()
        }
        _ => Vec::new(),
    }
}
