//! User contexts (PRM "UCTX", `create_uctx_in`): a driver lets programs write commands, each with
//! the number of its user context (`uid`) in it. What such a command makes is its user's; it may
//! name that user's objects, and do what no other user, nor the driver, is harmed by. The driver
//! itself is number 0 and may do everything.
//!
//! A user may name those objects of the driver's own that it made for all, XRC domains, which
//! programs share, and the driver's doorbell pages, of which drivers hand some on. A driver puts
//! queues of its own in where a queue pair has none: what a command does not use, it does not name.

use crate::command::ethernet_users as ethernet;
use crate::handlers::{counter_set, general_object, modify, psv};
use crate::layout::bits::Field;
use crate::layout::head::{Answer, SHARED, Status, done, is_of_user, number};
use crate::object::qp::{self, Purpose};
use crate::request::command::{Command, Function, Port, Queue, QueuePair, Resource, Ring};
use crate::request::qp::{CreateQp, ModifyQp, Transition};
use crate::request::queue::Placement;
use crate::request::srq::{CreateXrcSrq, CreateXrq};
use crate::request::user::{CreateUctx, DestroyUctx};
use std::collections::HashMap;

/// User contexts that there can be, as a logarithm.
pub(crate) const LOG_MAX: u64 = 8;
/// It may make queues that send whole frames (`MLX5_UCTX_CAP_RAW_TX`), which a driver grants to
/// users that the system grants it.
pub(crate) const SENDS_FRAMES: u64 = 1;

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
    /// Changes, asks about or uses this one.
    Names(Kind, u32),
    /// Ends this one.
    Ends(Kind, u32),
    /// Asks about the device.
    Asks,
}

/// Usual place of a number in an answer.
pub(super) const MADE: Field = Field::new(0x48, 24);

/// What a command that users may write does; `None` for all others.
fn role(command: &Command) -> Option<Does> {
    match command {
        Command::Function(
            Function::QueryHcaCap(_) | Function::QueryIssi | Function::QueryAdapter | Function::Nop,
        )
        | Command::Port(Port::QueryHcaVportContext | Port::QueryVportCounter) => Some(Does::Asks),
        Command::Resource(command) => role_of_resource(command),
        Command::Queue(command) => role_of_queue(command),
        Command::QueuePair(command) => Some(role_of_pair(command)),
        other => ethernet::role(other),
    }
}

fn role_of_resource(command: &Resource) -> Option<Does> {
    use Does::{Ends, Makes, Names};
    Some(match command {
        Resource::AllocUar => Makes(Kind::Uar, MADE),
        Resource::DeallocUar(about) => Ends(Kind::Uar, about.number),
        Resource::CreateGeneralObject(_) => Makes(Kind::General, general_object::NUMBER),
        Resource::DestroyGeneralObject(object) => Ends(Kind::General, object.obj_id),
        Resource::CreateUmem(_) => Makes(Kind::UserMemory, MADE),
        Resource::DestroyUmem(about) => Ends(Kind::UserMemory, about.number),
        Resource::AllocPd => Makes(Kind::Pd, MADE),
        Resource::DeallocPd(about) => Ends(Kind::Pd, about.number),
        Resource::AllocTransportDomain => Makes(Kind::TransportDomain, MADE),
        Resource::DeallocTransportDomain(about) => Ends(Kind::TransportDomain, about.number),
        Resource::AllocXrcd => Makes(Kind::Xrcd, MADE),
        Resource::DeallocXrcd(about) => Ends(Kind::Xrcd, about.number),
        Resource::CreateMkey(_) => Makes(Kind::Key, MADE),
        Resource::QueryMkey(about) => Names(Kind::Key, about.number),
        Resource::DestroyMkey(about) => Ends(Kind::Key, about.number),
        Resource::CreatePsv(_) => Makes(Kind::Psv, psv::NUMBER),
        Resource::DestroyPsv(about) => Ends(Kind::Psv, about.number),
        Resource::AllocQCounter => Makes(Kind::CounterSet, counter_set::NUMBER),
        Resource::QueryQCounter(asked) => Names(Kind::CounterSet, asked.counter_set_id),
        Resource::DeallocQCounter(set) => Ends(Kind::CounterSet, set.counter_set_id),
        Resource::PageFaultResume(_)
        | Resource::AllocMemic(_)
        | Resource::DeallocMemic(_)
        | Resource::ModifyMemic(_) => return None,
    })
}

fn role_of_queue(command: &Queue) -> Option<Does> {
    use Does::{Ends, Makes, Names};
    Some(match command {
        Queue::CreateEq(_) | Queue::DestroyEq(_) => return None,
        Queue::CreateCq(_) => Makes(Kind::Cq, MADE),
        Queue::QueryCq(about) => Names(Kind::Cq, about.number),
        Queue::ModifyCq(wanted) => Names(Kind::Cq, wanted.cqn),
        Queue::DestroyCq(about) => Ends(Kind::Cq, about.number),
        Queue::CreateXrcSrq(_) | Queue::CreateRmp(_) | Queue::CreateXrq(_) => {
            Makes(Kind::Srq, MADE)
        }
        Queue::QueryXrcSrq(about) | Queue::QueryRmp(about) | Queue::QueryXrq(about) => {
            Names(Kind::Srq, about.number)
        }
        Queue::ArmXrcSrq(wanted) => Names(Kind::Srq, wanted.xrc_srqn),
        Queue::ArmRq(wanted) => Names(Kind::Srq, wanted.srq_number),
        Queue::ModifyRmp(wanted) => Names(Kind::Srq, wanted.rmpn),
        Queue::DestroyXrcSrq(about) | Queue::DestroyRmp(about) | Queue::DestroyXrq(about) => {
            Ends(Kind::Srq, about.number)
        }
    })
}

fn role_of_pair(command: &QueuePair) -> Does {
    match command {
        QueuePair::CreateQp(_) => Does::Makes(Kind::Qp, MADE),
        QueuePair::QueryQp(about) => Does::Names(Kind::Qp, about.number),
        QueuePair::Rst2InitQp(wanted)
        | QueuePair::Init2InitQp(wanted)
        | QueuePair::Init2RtrQp(wanted)
        | QueuePair::Rtr2RtsQp(wanted)
        | QueuePair::Rts2RtsQp(wanted)
        | QueuePair::SqdRtsQp(wanted)
        | QueuePair::Qp2Err(wanted)
        | QueuePair::Qp2Rst(wanted) => Does::Names(Kind::Qp, wanted.qpn),
        QueuePair::AttachToMcg(group) | QueuePair::DetachFromMcg(group) => {
            Does::Names(Kind::Qp, group.qpn)
        }
        QueuePair::DestroyQp(about) => Does::Ends(Kind::Qp, about.number),
    }
}

/// What any command does to objects that users, or the driver alone, make and end.
pub(crate) fn effect(command: &Command) -> Option<Does> {
    match command {
        Command::Queue(Queue::CreateEq(_)) => Some(Does::Makes(Kind::Eq, MADE)),
        Command::Queue(Queue::DestroyEq(queue)) => {
            Some(Does::Ends(Kind::Eq, queue.eq_number.into()))
        }
        other => role(other),
    }
}

/// Other objects that a command names: their kinds and numbers.
fn named(command: &Command) -> Vec<(Kind, u32)> {
    match command {
        Command::Resource(Resource::CreateMkey(wanted)) => vec![(Kind::Pd, wanted.pd)],
        Command::Resource(Resource::CreatePsv(wanted)) => vec![(Kind::Pd, wanted.pd)],
        Command::Queue(command) => named_by_queue(command),
        Command::QueuePair(QueuePair::CreateQp(wanted)) => named_by_pair(wanted),
        Command::QueuePair(QueuePair::Rst2InitQp(wanted)) => {
            named_by_transition(Transition::RstToInit, wanted)
        }
        Command::QueuePair(QueuePair::Rts2RtsQp(wanted)) => {
            named_by_transition(Transition::RtsToRts, wanted)
        }
        other => ethernet::named(other),
    }
}

/// The user memory that a queue is in.
fn memories(placement: &Placement) -> impl Iterator<Item = (Kind, u32)> {
    placement.user_memories().map(|number| (Kind::UserMemory, number))
}

fn named_by_queue(command: &Queue) -> Vec<(Kind, u32)> {
    let (named, placement) = match command {
        Queue::CreateCq(wanted) => (vec![(Kind::Uar, wanted.uar_page)], &wanted.entries.placement),
        Queue::ModifyCq(wanted) => (Vec::new(), &wanted.entries.placement),
        Queue::CreateXrcSrq(CreateXrcSrq { pd, xrcd, cqn, placement, .. }) => {
            (vec![(Kind::Pd, *pd), (Kind::Xrcd, *xrcd), (Kind::Cq, *cqn)], placement)
        }
        Queue::CreateRmp(wanted) => (vec![(Kind::Pd, wanted.wq.pd)], &wanted.wq.placement),
        Queue::CreateXrq(CreateXrq { cqn, wq, .. }) => {
            (vec![(Kind::Pd, wq.pd), (Kind::Cq, *cqn)], &wq.placement)
        }
        _ => return Vec::new(),
    };
    named.into_iter().chain(memories(placement)).collect()
}

fn named_by_transition(transition: Transition, wanted: &ModifyQp) -> Vec<(Kind, u32)> {
    // Number 0 is what the device counts for all.
    let set = modify::counter_set(transition, wanted).filter(|set| *set != 0);
    set.map(|set| (Kind::CounterSet, set)).into_iter().collect()
}

fn named_by_pair(wanted: &CreateQp) -> Vec<(Kind, u32)> {
    let purpose = Purpose::of(wanted);
    let receives = purpose.is_ok_and(Purpose::receives_complete);
    let mut named = vec![(Kind::Pd, wanted.pd), (Kind::Xrcd, wanted.xrcd)];
    if purpose.is_ok_and(Purpose::sends_complete) {
        named.push((Kind::Cq, wanted.cqn_snd));
    }
    if receives {
        named.push((Kind::Cq, wanted.cqn_rcv));
    }
    if receives && qp::receives_are_shared(wanted) {
        named.push((Kind::Srq, wanted.srqn_rmpn_xrqn));
    }
    if !wanted.no_sq {
        named.push((Kind::Uar, wanted.uar_page));
    }
    named.extend(memories(&wanted.placement));
    named
}

/// Whether a user with these capabilities may make such a thing at all.
fn is_for_users(command: &Command, capabilities: u64) -> bool {
    match command {
        Command::QueuePair(QueuePair::CreateQp(wanted)) => {
            let carries = matches!(Purpose::of(wanted), Ok(Purpose::Transport(_)));
            carries && !wanted.fre
        }
        Command::Resource(Resource::CreateMkey(wanted)) => wanted.is_for_users(),
        Command::Resource(Resource::CreatePsv(wanted)) => wanted.num_psv == 1,
        // It sends whatever frames its user puts together.
        Command::Ring(Ring::CreateSq(_)) => capabilities & SENDS_FRAMES != 0,
        _ => true,
    }
}

/// A user context.
struct Context {
    /// How many it has.
    objects: usize,
    capabilities: u64,
}

/// All user contexts, and whose each object is.
#[derive(Default)]
pub(crate) struct Users {
    contexts: HashMap<u16, Context>,
    /// Objects that are not the driver's.
    owners: HashMap<(Kind, u32), u16>,
}

impl Users {
    /// Whether a command of `user` may be executed.
    pub(crate) fn check(&self, user: u16, command: &Command) -> Result<(), Status> {
        if !is_of_user(user) {
            return Ok(());
        }
        let context = self.contexts.get(&user).ok_or(Status::BadResource)?;
        match role(command).ok_or(Status::BadOperation)? {
            Does::Names(kind, number) | Does::Ends(kind, number) => {
                if self.owner(kind, number) != user {
                    return Err(Status::BadResource);
                }
            }
            Does::Makes(..) if !is_for_users(command, context.capabilities) => {
                return Err(Status::BadOperation);
            }
            Does::Makes(..) | Does::Asks => {}
        }
        let foreign = |&(kind, number): &(Kind, u32)| {
            let owner = self.owner(kind, number);
            !(owner == user || owner == SHARED || owner == 0 && kind.is_lent())
        };
        if named(command).iter().any(foreign) { Err(Status::BadResource) } else { Ok(()) }
    }

    fn owner(&self, kind: Kind, number: u32) -> u16 {
        self.owners.get(&(kind, number)).copied().unwrap_or(0)
    }

    /// A command of `user` was executed, with this answer.
    pub(crate) fn note(&mut self, user: u16, command: &Command, answer: &[u8]) {
        match role(command) {
            Some(Does::Makes(kind, field)) => {
                if user != 0 {
                    let number = field.before_head().get32(answer);
                    self.owners.insert((kind, number), user);
                }
                if let Some(context) = self.contexts.get_mut(&user) {
                    context.objects += 1;
                }
            }
            Some(Does::Ends(kind, number)) => {
                let owner = self.owners.remove(&(kind, number));
                if let Some(context) = owner.and_then(|owner| self.contexts.get_mut(&owner)) {
                    context.objects -= 1;
                }
            }
            _ => {}
        }
    }

    /// `CREATE_UCTX`, with capabilities of those that there are (`uctx_cap`).
    pub(crate) fn create(&mut self, offered: u64, request: &CreateUctx) -> Answer {
        let capabilities = request.cap;
        if capabilities & !offered != 0 {
            return Err(Status::BadParameter);
        }
        let free = (1..1 << LOG_MAX).find(|user| !self.contexts.contains_key(user));
        let user = free.ok_or(Status::NoResources)?;
        self.contexts.insert(user, Context { objects: 0, capabilities });
        number(user.into())
    }

    /// `DESTROY_UCTX`: its objects must be gone.
    pub(crate) fn destroy(&mut self, request: &DestroyUctx) -> Answer {
        let user = request.uid;
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
