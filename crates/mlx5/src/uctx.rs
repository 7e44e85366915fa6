//! User contexts (PRM "UCTX", `create_uctx_in`): a driver lets programs write commands, each with the number of its user context
//! (`uid`) in it. What such a command makes is its user's; it may name that user's objects, and do what no other user, nor the
//! driver, is harmed by. The driver itself is number 0 and may do everything.
//!
//! Of the driver's own objects a user may name those that it made for all, XRC domains, which programs share, and the driver's
//! doorbell pages, of which drivers hand some on. A driver puts queues of its own in where a queue pair has none: what a command
//! does not use, it does not name.

use crate::bits::Field;
use crate::command::{OBJECT, done, number};
use crate::opcode::{self, Answer, Status};
use crate::qp::{self, Purpose};
use crate::user_memory::Place;
use crate::{counter_set, cq, eq, general_object, mkc, nic, psv, srq, uar};
use std::collections::HashMap;

/// Of every command.
const UID: Field = Field::new(0x10, 16);
/// The driver makes something that all users may name (`MLX5_SHARED_RESOURCE_UID`).
const SHARED: u16 = 0xffff;
/// User contexts that there can be, as a logarithm.
pub(crate) const LOG_MAX: u64 = 8;
/// What a user context may besides, in `create_uctx_in`.
const CAPABILITIES: Field = Field::new(0x80, 32);
/// It may make queues that send whole frames (`MLX5_UCTX_CAP_RAW_TX`), which a driver grants to whom the system grants it.
pub(crate) const SENDS_FRAMES: u64 = 1;
/// In `destroy_uctx_in`.
const ENDED: Field = Field::new(0x50, 16);

/// What has an owner. Objects whose numbers are from one range are of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    CounterSet,
    Cq,
    /// Event queues, which are the driver's.
    Eq,
    General,
    Key,
    /// Queues and transport interfaces of the Ethernet, and indirection tables.
    Nic,
    Pd,
    Psv,
    Qp,
    /// Receive pools as well.
    Srq,
    TransportDomain,
    Uar,
    UserMemory,
    Xrcd,
}

impl Kind {
    /// Whether a user may name the driver's own.
    fn is_lent(self) -> bool {
        matches!(self, Kind::Uar | Kind::Xrcd)
    }
}

/// What a command does to objects.
pub(crate) enum Does {
    /// Makes one, whose number is in this field of the answer.
    Makes(Kind, Field),
    /// Changes, asks about or uses one.
    Names(Kind, Field),
    /// Ends one.
    Ends(Kind, Field),
    /// Asks about the device.
    Asks,
}

/// Usual place of a number in an answer.
const MADE: Field = Field::new(0x48, 24);

/// What a command that users may write does; `None` for all others.
fn role(code: u16) -> Option<Does> {
    use Does::{Asks, Ends, Makes, Names};
    Some(match code {
        opcode::QUERY_HCA_CAP
        | opcode::QUERY_ISSI
        | opcode::QUERY_ADAPTER
        | opcode::QUERY_HCA_VPORT_CONTEXT
        | opcode::QUERY_VPORT_COUNTER
        | opcode::NOP => Asks,
        opcode::ALLOC_UAR => Makes(Kind::Uar, MADE),
        opcode::DEALLOC_UAR => Ends(Kind::Uar, OBJECT),
        opcode::CREATE_GENERAL_OBJECT => Makes(Kind::General, general_object::NUMBER),
        opcode::DESTROY_GENERAL_OBJECT => Ends(Kind::General, general_object::NUMBER),
        opcode::CREATE_UMEM => Makes(Kind::UserMemory, MADE),
        opcode::DESTROY_UMEM => Ends(Kind::UserMemory, OBJECT),
        opcode::ALLOC_PD => Makes(Kind::Pd, MADE),
        opcode::DEALLOC_PD => Ends(Kind::Pd, OBJECT),
        opcode::ALLOC_TRANSPORT_DOMAIN => Makes(Kind::TransportDomain, MADE),
        opcode::DEALLOC_TRANSPORT_DOMAIN => Ends(Kind::TransportDomain, OBJECT),
        opcode::ALLOC_XRCD => Makes(Kind::Xrcd, MADE),
        opcode::DEALLOC_XRCD => Ends(Kind::Xrcd, OBJECT),
        opcode::CREATE_MKEY => Makes(Kind::Key, MADE),
        opcode::QUERY_MKEY => Names(Kind::Key, OBJECT),
        opcode::DESTROY_MKEY => Ends(Kind::Key, OBJECT),
        opcode::CREATE_PSV => Makes(Kind::Psv, psv::NUMBER),
        opcode::DESTROY_PSV => Ends(Kind::Psv, OBJECT),
        opcode::CREATE_CQ => Makes(Kind::Cq, MADE),
        opcode::QUERY_CQ | opcode::MODIFY_CQ => Names(Kind::Cq, OBJECT),
        opcode::DESTROY_CQ => Ends(Kind::Cq, OBJECT),
        opcode::CREATE_XRC_SRQ | opcode::CREATE_RMP | opcode::CREATE_XRQ => Makes(Kind::Srq, MADE),
        opcode::QUERY_XRQ | opcode::ARM_RQ => Names(Kind::Srq, OBJECT),
        opcode::QUERY_XRC_SRQ | opcode::QUERY_RMP | opcode::ARM_XRC_SRQ | opcode::MODIFY_RMP => {
            Names(Kind::Srq, OBJECT)
        }
        opcode::DESTROY_XRC_SRQ | opcode::DESTROY_RMP | opcode::DESTROY_XRQ => {
            Ends(Kind::Srq, OBJECT)
        }
        opcode::CREATE_QP => Makes(Kind::Qp, MADE),
        opcode::QUERY_QP
        | opcode::RST2INIT_QP
        | opcode::INIT2INIT_QP
        | opcode::INIT2RTR_QP
        | opcode::RTR2RTS_QP
        | opcode::RTS2RTS_QP
        | opcode::SQD_RTS_QP
        | opcode::QP_2ERR
        | opcode::QP_2RST
        | opcode::ATTACH_TO_MCG
        | opcode::DETACH_FROM_MCG => Names(Kind::Qp, OBJECT),
        opcode::DESTROY_QP => Ends(Kind::Qp, OBJECT),
        opcode::ALLOC_Q_COUNTER => Makes(Kind::CounterSet, counter_set::NUMBER),
        opcode::QUERY_Q_COUNTER => Names(Kind::CounterSet, counter_set::QUERIED),
        opcode::DEALLOC_Q_COUNTER => Ends(Kind::CounterSet, counter_set::NUMBER),
        other => match nic::role(other)? {
            nic::Role::Makes => Makes(Kind::Nic, MADE),
            nic::Role::Names => Names(Kind::Nic, OBJECT),
            nic::Role::Ends => Ends(Kind::Nic, OBJECT),
            nic::Role::Asks => Asks,
        },
    })
}

/// What any command does to objects that users, or the driver alone, make and end.
pub(crate) fn effect(code: u16) -> Option<Does> {
    match code {
        opcode::CREATE_EQ => Some(Does::Makes(Kind::Eq, MADE)),
        opcode::DESTROY_EQ => Some(Does::Ends(Kind::Eq, eq::NUMBER)),
        other => role(other),
    }
}

/// Other objects that a command names: their kinds and numbers.
fn named(code: u16, input: &[u8]) -> Vec<(Kind, u32)> {
    let at = |kind, field: Field| (kind, field.get32(input));
    let memories = |places: [Place; 2]| {
        let numbers = places.into_iter().filter_map(|place| place.number(input));
        numbers.map(|number| (Kind::UserMemory, number)).collect::<Vec<_>>()
    };
    let mut named = match code {
        opcode::CREATE_CQ | opcode::MODIFY_CQ => memories([cq::ENTRIES, cq::RECORD]),
        opcode::CREATE_QP => memories([qp::WORK, qp::RECORD]),
        opcode::CREATE_XRC_SRQ => memories([srq::XRC_ENTRIES, srq::XRC_RECORD]),
        opcode::CREATE_RMP => memories([srq::POOL_ENTRIES, srq::POOL_RECORD]),
        opcode::CREATE_XRQ => memories([srq::TAGS_ENTRIES, srq::TAGS_RECORD]),
        _ => Vec::new(),
    };
    named.extend(match code {
        opcode::CREATE_CQ => vec![at(Kind::Uar, uar::IN_CONTEXT.at(cq::CONTEXT_BIT))],
        opcode::CREATE_MKEY => vec![at(Kind::Pd, mkc::PD)],
        opcode::CREATE_PSV => vec![at(Kind::Pd, psv::PD)],
        opcode::CREATE_XRC_SRQ => vec![
            at(Kind::Pd, srq::XRC_PD),
            at(Kind::Xrcd, srq::XRC_DOMAIN),
            at(Kind::Cq, srq::XRC_CQ),
        ],
        opcode::CREATE_RMP => vec![at(Kind::Pd, srq::POOL_PD)],
        opcode::CREATE_XRQ => vec![at(Kind::Pd, srq::TAGS_PD), at(Kind::Cq, srq::TAGS_CQ)],
        opcode::CREATE_QP => {
            let purpose = Purpose::of(input);
            let receives = purpose.is_ok_and(Purpose::receives_complete);
            let mut named = vec![at(Kind::Pd, qp::PD), at(Kind::Xrcd, qp::XRC_DOMAIN)];
            if purpose.is_ok_and(Purpose::sends_complete) {
                named.push(at(Kind::Cq, qp::SEND_CQ));
            }
            if receives {
                named.push(at(Kind::Cq, qp::RECEIVE_CQ));
            }
            if receives && qp::receives_are_shared(input) {
                named.push(at(Kind::Srq, qp::SRQ));
            }
            if qp::sends(input) {
                named.push(at(Kind::Uar, uar::IN_CONTEXT.at(qp::CONTEXT_BIT)));
            }
            named
        }
        opcode::RST2INIT_QP => match qp::COUNTER_SET.get32(input) {
            0 => Vec::new(),
            set => vec![(Kind::CounterSet, set)],
        },
        other => nic::named(other, input),
    });
    named
}

/// Whether what a user with these capabilities wants to make is for him at all.
fn is_for_users(code: u16, input: &[u8], capabilities: u64) -> bool {
    match code {
        opcode::CREATE_QP => {
            let carries = matches!(Purpose::of(input), Ok(Purpose::Transport(_)));
            carries && !qp::FAST_REGISTERS.is_set(input)
        }
        opcode::CREATE_MKEY => mkc::is_for_users(input),
        opcode::CREATE_PSV => psv::COUNT.get(input) == 1,
        other => !nic::sends_frames(other) || capabilities & SENDS_FRAMES != 0,
    }
}

/// A user context.
struct Context {
    /// How many it has.
    objects: usize,
    capabilities: u64,
}

/// Whether a user's command, not the driver's own, makes something.
pub(crate) fn is_of_user(input: &[u8]) -> bool {
    !matches!(UID.get(input) as u16, 0 | SHARED)
}

/// All user contexts, and whose each object is.
#[derive(Default)]
pub(crate) struct Users {
    contexts: HashMap<u16, Context>,
    /// Objects that are not the driver's.
    owners: HashMap<(Kind, u32), u16>,
}

impl Users {
    /// Whether a command may be executed.
    pub(crate) fn check(&self, code: u16, input: &[u8]) -> Result<(), Status> {
        if !is_of_user(input) {
            return Ok(());
        }
        let user = UID.get(input) as u16;
        let context = self.contexts.get(&user).ok_or(Status::BadResource)?;
        match role(code).ok_or(Status::BadOperation)? {
            Does::Names(kind, field) | Does::Ends(kind, field) => {
                if self.owner(kind, field.get32(input)) != user {
                    return Err(Status::BadResource);
                }
            }
            Does::Makes(..) if !is_for_users(code, input, context.capabilities) => {
                return Err(Status::BadOperation);
            }
            Does::Makes(..) | Does::Asks => {}
        }
        let foreign = |&(kind, number): &(Kind, u32)| {
            let owner = self.owner(kind, number);
            !(owner == user || owner == SHARED || owner == 0 && kind.is_lent())
        };
        if named(code, input).iter().any(foreign) { Err(Status::BadResource) } else { Ok(()) }
    }

    fn owner(&self, kind: Kind, number: u32) -> u16 {
        self.owners.get(&(kind, number)).copied().unwrap_or(0)
    }

    /// A command was executed, with this answer.
    pub(crate) fn note(&mut self, code: u16, input: &[u8], answer: &[u8]) {
        match role(code) {
            Some(Does::Makes(kind, field)) => {
                let user = UID.get(input) as u16;
                if user != 0 {
                    let number = field.before_head().get32(answer);
                    self.owners.insert((kind, number), user);
                }
                if let Some(context) = self.contexts.get_mut(&user) {
                    context.objects += 1;
                }
            }
            Some(Does::Ends(kind, field)) => {
                let owner = self.owners.remove(&(kind, field.get32(input)));
                if let Some(context) = owner.and_then(|owner| self.contexts.get_mut(&owner)) {
                    context.objects -= 1;
                }
            }
            _ => {}
        }
    }

    /// `CREATE_UCTX`, with capabilities of those that there are (`uctx_cap`).
    pub(crate) fn create(&mut self, offered: u64, input: &[u8]) -> Answer {
        let capabilities = CAPABILITIES.get(input);
        if capabilities & !offered != 0 {
            return Err(Status::BadParameter);
        }
        let free = (1..1 << LOG_MAX).find(|user| !self.contexts.contains_key(user));
        let user = free.ok_or(Status::NoResources)?;
        self.contexts.insert(user, Context { objects: 0, capabilities });
        number(user.into())
    }

    /// `DESTROY_UCTX`: its objects must be gone.
    pub(crate) fn destroy(&mut self, input: &[u8]) -> Answer {
        let user = ENDED.get(input) as u16;
        match self.contexts.get(&user).map(|context| context.objects) {
            None => Err(Status::BadResource),
            Some(1..) => Err(Status::Busy),
            Some(0) => {
                self.contexts.remove(&user);
                done()
            }
        }
    }
}
