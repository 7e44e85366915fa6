//! What a driver did wrong, reported once each to the server of the function, until it is reset: a
//! driver that means no good could fill any log.

use crate::layout::head::{Delivery, Status};
use crate::machine::bus::{Bus, Dma};
use crate::request::command;
use engine_thread::lock;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock};
use umem::{AccessError, AtomicOp, DmaSpace, Fold};

/// An act that is wrong; equal acts are reported once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Act {
    /// A command that could not be fetched.
    Undelivered(Delivery),
    /// A command, by its opcode, that was refused.
    Command(u16, Status),
    /// A doorbell for no queue, or for one that names another page.
    Doorbell,
    /// More was rung for than the queue holds, or it is not in memory.
    SendQueue,
    /// A send request, by its opcode.
    Request(u8),
    /// A change of a memory key.
    KeyChange(Status),
    /// A request names memory that its key does not give.
    Protection,
    /// A completion queue ran over, or is not in memory.
    CompletionQueue,
    /// An event, by its type, found no room in its queue.
    Event(u8),
    /// Memory that is not there was to be read.
    Read,
    /// The same, written.
    Write,
}

impl fmt::Display for Act {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Act::Undelivered(why) => write!(f, "a command could not be fetched: {why}"),
            Act::Command(opcode, status) => match command::name(*opcode) {
                Some(name) => write!(f, "the command {name} was refused: {status}"),
                None => write!(f, "the command {opcode:#x} was refused: {status}"),
            },
            Act::Doorbell => f.write_str("a doorbell rang for no queue of its page"),
            Act::SendQueue => f.write_str("a send queue cannot be read"),
            Act::Request(opcode) => write!(f, "a send request of opcode {opcode:#x} is wrong"),
            Act::KeyChange(status) => write!(f, "a memory key cannot be changed so: {status}"),
            Act::Protection => f.write_str("a request names memory that its key does not give"),
            Act::CompletionQueue => f.write_str("a completion queue failed"),
            Act::Event(kind) => write!(f, "an event of type {kind:#x} is lost: its queue is full"),
            Act::Read => f.write_str("memory that is not there was to be read"),
            Act::Write => f.write_str("memory that is not there was to be written"),
        }
    }
}

type Teller = Box<dyn Fn(&str) + Send + Sync>;

/// What was reported, and to whom.
#[derive(Default)]
pub(crate) struct Reports {
    teller: OnceLock<Teller>,
    told: Mutex<HashSet<Act>>,
}

impl Reports {
    /// From now on tells here. The first one that is named stays.
    pub(crate) fn tell_to(&self, teller: Teller) {
        let _ = self.teller.set(teller);
    }

    /// Tells of an act, and where it was done.
    pub(crate) fn tell(&self, act: Act, place: fmt::Arguments<'_>) {
        let Some(teller) = self.teller.get() else { return };
        let mut told = lock(&self.told);
        if told.insert(act) {
            drop(told);
            teller(&format!("{act} ({place})"));
        }
    }

    /// As after power-on.
    pub(crate) fn clear(&self) {
        lock(&self.told).clear();
    }
}

/// A machine whose memory is watched for accesses outside of it.
pub(crate) struct WatchedBus {
    pub(crate) bus: Arc<dyn Bus>,
    pub(crate) reports: Arc<Reports>,
}

impl WatchedBus {
    fn watch(&self, Dma { memory, route }: Dma) -> Dma {
        Dma { memory: Arc::new(WatchedMemory { memory, reports: self.reports.clone() }), route }
    }
}

impl Bus for WatchedBus {
    fn dma(&self) -> Dma {
        self.watch(self.bus.dma())
    }

    fn data_direct(&self) -> Option<Dma> {
        self.bus.data_direct().map(|dma| self.watch(dma))
    }

    fn by_messages(&self) -> bool {
        self.bus.by_messages()
    }

    fn interrupt(&self, vector: u16) {
        self.bus.interrupt(vector);
    }
}

struct WatchedMemory {
    memory: Arc<dyn DmaSpace>,
    reports: Arc<Reports>,
}

impl WatchedMemory {
    fn watch<T>(
        &self,
        act: Act,
        (addr, len): (u64, usize),
        done: Result<T, AccessError>,
    ) -> Result<T, AccessError> {
        if let Err(error) = &done {
            self.reports.tell(act, format_args!("{len} bytes at {addr:#x}: {error}"));
        }
        done
    }
}

impl DmaSpace for WatchedMemory {
    fn read(&self, addr: u64, dst: &mut [u8]) -> Result<(), AccessError> {
        self.watch(Act::Read, (addr, dst.len()), self.memory.read(addr, dst))
    }

    fn read_folding(&self, addr: u64, dst: &mut [u8], fold: &mut Fold) -> Result<(), AccessError> {
        let done = self.memory.read_folding(addr, dst, fold);
        self.watch(Act::Read, (addr, dst.len()), done)
    }

    fn write(&self, addr: u64, src: &[u8]) -> Result<(), AccessError> {
        self.watch(Act::Write, (addr, src.len()), self.memory.write(addr, src))
    }

    fn atomic(&self, addr: u64, op: AtomicOp) -> Result<u64, AccessError> {
        self.watch(Act::Write, (addr, size_of::<u64>()), self.memory.atomic(addr, op))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_act_is_told_once_by_name_until_a_reset() {
        let reports = Reports::default();
        let said = Arc::new(Mutex::new(Vec::new()));
        let sink = said.clone();
        reports.tell(Act::Doorbell, format_args!("nobody listens yet"));
        reports.tell_to(Box::new(move |text| sink.lock().unwrap().push(text.to_owned())));
        const CREATE_QP: u16 = 0x500;
        let refused = Act::Command(CREATE_QP, Status::BadParameter);
        for place in ["first", "second"] {
            reports.tell(refused, format_args!("{place}"));
            reports.tell(Act::Doorbell, format_args!("{place}"));
        }
        reports.clear();
        reports.tell(Act::Doorbell, format_args!("third"));
        assert_eq!(
            *said.lock().unwrap(),
            [
                "the command CREATE_QP was refused: bad parameter (first)",
                "a doorbell rang for no queue of its page (first)",
                "a doorbell rang for no queue of its page (third)",
            ]
        );
    }
}
