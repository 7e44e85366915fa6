//! What each object costs, charged to the [`Budget`] when a command makes one and given back when
//! it ends. Lists that requests fill later charge for themselves ([`crate::machine::sparse`]).

use crate::command::uctx::{self, Does, Kind};
use crate::layout::head::Status;
use crate::machine::budget::{Budget, Charge};
use crate::object::{qp, srq};
use crate::request::command::{Command, Queue, QueuePair, Request};
use std::collections::HashMap;
use std::sync::Arc;

/// Least that any object takes, with its place in the tables.
const LEAST: u64 = 1 << 10;
/// A queue pair without its send queue: the transport's state, and what it keeps of the peers of
/// datagrams.
const QUEUE_PAIR: u64 = 16 << 10;
const DATAGRAM_QUEUE_PAIR: u64 = 96 << 10;
/// A request of the smallest size that waits in the transport.
const SEND: u64 = 512;
/// A queue that matches tags, and each tagged buffer.
const TAGGED_QUEUE: u64 = 2 << 20;
const TAGGED: u64 = 256;

/// Bytes that a command's object takes. What the command lists may be kept in another form, which
/// is at most twice as long.
fn cost(request: &Request) -> u64 {
    let own = match &request.command {
        Command::QueuePair(QueuePair::CreateQp(wanted)) => {
            let queue = if qp::keeps_peers(wanted) { DATAGRAM_QUEUE_PAIR } else { QUEUE_PAIR };
            queue + (SEND << qp::log_sends(wanted))
        }
        Command::Queue(Queue::CreateXrq(wanted)) => {
            TAGGED_QUEUE + TAGGED * u64::from(srq::tagged_buffers(wanted))
        }
        _ => LEAST,
    };
    own + 2 * request.len as u64
}

/// What is charged for each object that there is.
pub(crate) struct Ledger {
    budget: Arc<Budget>,
    charges: HashMap<(Kind, u32), Charge>,
}

impl Ledger {
    pub(crate) fn new(budget: Arc<Budget>) -> Ledger {
        Ledger { budget, charges: HashMap::new() }
    }

    /// What a command will take that is about to be executed; `None` for one that makes nothing
    /// longer than it was.
    ///
    /// # Errors
    /// [`Status::NoResources`].
    pub(crate) fn before(&mut self, request: &Request) -> Result<Option<Charge>, Status> {
        match uctx::effect(&request.command) {
            Some(Does::Makes(..)) => Ok(Some(self.budget.charge(cost(request))?)),
            // What a list is replaced by may be longer.
            Some(Does::Names(kind, number)) => {
                if let Some(charge) = self.charges.get_mut(&(kind, number)) {
                    charge.raise(LEAST + 2 * request.len as u64)?;
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    /// The command was executed, with this answer.
    pub(crate) fn after(&mut self, command: &Command, answer: &[u8], charge: Option<Charge>) {
        match (uctx::effect(command), charge) {
            (Some(Does::Makes(kind, field)), Some(charge)) => {
                let number = field.before_head().get32(answer);
                self.charges.insert((kind, number), charge);
            }
            (Some(Does::Ends(kind, number)), _) => {
                self.charges.remove(&(kind, number));
            }
            _ => {}
        }
    }
}
