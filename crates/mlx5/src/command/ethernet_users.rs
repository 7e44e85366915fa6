//! What commands about objects of the Ethernet do to them, for the rule on whose they are
//! (`crate::command::uctx`).

use crate::command::uctx::{Does, Kind, MADE};
use crate::nic::tir;
use crate::request::command::{Command, Interface, Ring, Vport};
use crate::request::nic::{CreateRq, CreateRqt, CreateSq, CreateTir, CreateTis};

/// What users may do; steering is the driver's.
pub(super) fn role(command: &Command) -> Option<Does> {
    use Does::{Asks, Ends, Makes, Names};
    Some(match command {
        Command::Vport(Vport::QueryVportState | Vport::QueryNicVportContext(_)) => Asks,
        Command::Ring(command) => match command {
            Ring::CreateSq(_) | Ring::CreateRq(_) => Makes(Kind::Nic, MADE),
            Ring::ModifySq(wanted) | Ring::ModifyRq(wanted) => Names(Kind::Nic, wanted.number),
            Ring::QuerySq(about) | Ring::QueryRq(about) => Names(Kind::Nic, about.number),
            Ring::DestroySq(about) | Ring::DestroyRq(about) => Ends(Kind::Nic, about.number),
        },
        Command::Interface(command) => match command {
            Interface::CreateTir(_) | Interface::CreateTis(_) | Interface::CreateRqt(_) => {
                Makes(Kind::Nic, MADE)
            }
            Interface::ModifyTir(wanted) => Names(Kind::Nic, wanted.tirn),
            Interface::ModifyTis(wanted) => Names(Kind::Nic, wanted.tisn),
            Interface::ModifyRqt(wanted) => Names(Kind::Nic, wanted.rqtn),
            Interface::QueryTis(about) => Names(Kind::Nic, about.number),
            Interface::DestroyTir(about)
            | Interface::DestroyTis(about)
            | Interface::DestroyRqt(about) => Ends(Kind::Nic, about.number),
        },
        _ => return None,
    })
}

/// Other objects that a command names.
pub(super) fn named(command: &Command) -> Vec<(Kind, u32)> {
    match command {
        Command::Ring(Ring::CreateSq(wanted)) => by_sends(wanted),
        Command::Ring(Ring::CreateRq(wanted)) => by_queue(wanted),
        Command::Interface(command) => match command {
            Interface::CreateTis(wanted) => by_tis(wanted),
            Interface::ModifyTis(wanted) => by_tis(&wanted.new),
            Interface::CreateTir(wanted) => by_tir(wanted),
            Interface::ModifyTir(wanted) => by_tir(&wanted.new),
            Interface::CreateRqt(wanted) => by_table(wanted),
            Interface::ModifyRqt(wanted) => by_table(&wanted.new),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Those that are named: 0 names none.
fn nonzero<const N: usize>(named: [(Kind, u32); N]) -> Vec<(Kind, u32)> {
    named.into_iter().filter(|(_, number)| *number != 0).collect()
}

fn by_queue(CreateRq { cqn, wq, .. }: &CreateRq) -> Vec<(Kind, u32)> {
    let memories = wq.placement.user_memories().map(|number| (Kind::UserMemory, number));
    nonzero([(Kind::Cq, *cqn), (Kind::Pd, wq.pd)]).into_iter().chain(memories).collect()
}

fn by_sends(CreateSq { queue, tis_num_0, .. }: &CreateSq) -> Vec<(Kind, u32)> {
    let more = nonzero([(Kind::Nic, *tis_num_0), (Kind::Uar, queue.wq.uar_page)]);
    by_queue(queue).into_iter().chain(more).collect()
}

fn by_tis(tis: &CreateTis) -> Vec<(Kind, u32)> {
    nonzero([(Kind::TransportDomain, tis.transport_domain)])
}

fn by_tir(tir: &CreateTir) -> Vec<(Kind, u32)> {
    nonzero([
        (Kind::Nic, tir.inline_rqn),
        (Kind::Nic, tir.indirect_table),
        (Kind::TransportDomain, tir.transport_domain),
    ])
}

fn by_table(table: &CreateRqt) -> Vec<(Kind, u32)> {
    let queues = tir::table(table).unwrap_or_default();
    queues.into_iter().map(|queue| (Kind::Nic, queue)).collect()
}
