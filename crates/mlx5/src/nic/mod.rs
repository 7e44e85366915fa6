//! The Ethernet side of a RoCE port: what a network driver makes to send and receive frames.
//! Queues, transport interfaces and steering tables are kept as objects and honoured as far as
//! frames need them; frames travel on the HCA's Ethernet.
//!
//! Frames arrive in whichever thread receives for the HCA. It holds the tables for reading until a
//! frame is in guest memory, so that a command that takes a queue away, which holds them for
//! writing, ends what reaches memory through it.

pub(crate) mod counters;
mod criteria;
pub(crate) mod flow_counter;
mod frame;
pub(crate) mod queue;
mod receive;
mod registers;
pub(crate) mod send;
pub(crate) mod steering;
pub(crate) mod tir;
pub(crate) mod vport;

use crate::layout::bits::Field;
use crate::layout::context::Context;
use crate::layout::head::{Answer, Status, done, number};
use crate::machine::table::Numbers;
use crate::object::shared::Shared;
use crate::object::uar::Uar;
use crate::request::command::{self, About, Flow, Interface, Ring};
use crate::request::nic::{CreateRq, CreateSq, ModifyTis};
use engine_thread::{read, write};
use hca::{Device, Fabric};
use link::FrameSink;
use receive::Receives;
use send::Sends;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use steering::Steering;
use tir::Tir;

pub(crate) use registers::register;
use vport::Vport;
use wire::frame::Frame;

/// Numbers of queues: those of the HCA's queue pairs, which doorbells name as well, are above.
const NUMBERS: std::ops::Range<u32> = 1..0x4000;
/// Bytes of an answer before the context of a query, beyond status and syndrome.
const QUERY_HEAD: usize = 0x20 - 8;

/// Objects by number.
struct Tables {
    numbers: Numbers,
    receives: HashMap<u32, Receives>,
    sends: HashMap<u32, Arc<Sends>>,
    tirs: HashMap<u32, Tir>,
    tables: HashMap<u32, Vec<u32>>,
    /// Contexts of transport interface sends.
    tiss: HashMap<u32, Context>,
    steering: Steering,
}

impl Default for Tables {
    fn default() -> Tables {
        Tables {
            numbers: Numbers::within(NUMBERS),
            receives: HashMap::new(),
            sends: HashMap::new(),
            tirs: HashMap::new(),
            tables: HashMap::new(),
            tiss: HashMap::new(),
            steering: Steering::default(),
        }
    }
}

/// The whole Ethernet side of a port.
#[derive(Default)]
pub(crate) struct Nic {
    tables: RwLock<Tables>,
    pub(crate) vport: Vport,
    /// Once frames may come.
    hca: OnceLock<Weak<Device>>,
}

impl Nic {
    /// From now on frames come from `hca`.
    pub(crate) fn attach(self: &Arc<Nic>, hca: &Arc<Device>) {
        let _ = self.hca.set(Arc::downgrade(hca));
        if let Fabric::Ethernet(port) = hca.network() {
            self.vport.set_mac(port.mac());
            port.set_frame_sink(self.clone());
        }
    }

    fn tables(&self) -> RwLockReadGuard<'_, Tables> {
        read(&self.tables)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Tables> {
        write(&self.tables)
    }

    /// As after power-on; nothing reaches memory through any object afterwards.
    pub(crate) fn reset(&self, hca: &Device) {
        let sends: Vec<_> = std::mem::take(&mut *self.change()).sends.into_values().collect();
        sends.iter().for_each(|queue| queue.stop());
        self.vport.reset(hca);
    }

    /// Somebody rang for send queue `number` by the page `uar`; false if it is none of that page.
    pub(crate) fn ring(&self, shared: &Shared, uar: &Arc<Uar>, number: u32) -> bool {
        let queue = self.tables().sends.get(&number).filter(|queue| queue.is_rung_by(uar)).cloned();
        queue.inspect(|queue| queue.run(shared, self)).is_some()
    }

    /// Hands a frame that the port itself sent, from the transport `domain`, to those of its queues
    /// that are to see it.
    fn loop_back(&self, hca: &Device, bytes: &[u8], domain: u32) {
        let Some(frame) = Frame::parse(bytes) else { return };
        if self.vport.loops(frame.dst) {
            self.deliver(hca, &frame, bytes, |tir| tir.takes_from(domain, &frame));
        }
    }

    /// Hands a frame to the queues that it is steered to by way of interfaces that `may` take it.
    fn deliver(&self, hca: &Device, frame: &Frame, bytes: &[u8], may: impl Fn(&Tir) -> bool) {
        let tables = self.tables();
        let mut queues: Vec<(u32, u32)> = Vec::new();
        tables.steering.steer(frame, bytes.len(), &mut |to| {
            let tir = tables.tirs.get(&to.tir).filter(|tir| may(tir));
            let table = |number| tables.tables.get(&number).map(Vec::as_slice);
            queues.extend(tir.and_then(|tir| tir.queue(frame, table)).map(|queue| (queue, to.tag)));
        });
        for (queue, tag) in queues {
            let queue = tables.receives.get(&queue);
            let taken = queue.is_some_and(|queue| queue.take(hca, bytes, tag));
            self.vport.counters.received(bytes, taken);
        }
    }

    /// Executes a command about the port.
    pub(crate) fn on_port(&self, shared: &Shared, command: &command::Vport) -> Answer {
        match command {
            command::Vport::QueryNicVportContext(asked) => {
                self.vport.query(shared.port.guid(), asked)
            }
            command::Vport::ModifyNicVportContext(wanted) => self.vport.modify(wanted),
            command::Vport::QueryVportState => self.vport.state(),
            command::Vport::ModifyVportState(wanted) => self.vport.set_state(shared, wanted),
            command::Vport::SetRoceAddress(wanted) => vport::set_address(&shared.hca, wanted),
        }
    }

    /// Executes a command about a queue.
    pub(crate) fn on_ring(self: &Arc<Nic>, shared: &Arc<Shared>, command: &Ring) -> Answer {
        match command {
            Ring::CreateSq(wanted) => self.create_sends(shared, wanted),
            Ring::ModifySq(wanted) => {
                self.sends(wanted.number)?.modify(wanted).and_then(|()| done())
            }
            Ring::QuerySq(About { number }) => queried(&self.sends(*number)?.context()),
            Ring::DestroySq(About { number }) => self.destroy_sends(*number),
            Ring::CreateRq(wanted) => self.change().create_receives(shared, wanted),
            Ring::ModifyRq(wanted) => {
                self.change().receives(wanted.number)?.modify(wanted).and_then(|()| done())
            }
            Ring::QueryRq(About { number }) => queried(&self.change().receives(*number)?.context()),
            Ring::DestroyRq(About { number }) => {
                let mut tables = self.change();
                let ended = tables.receives.remove(number).is_some();
                tables.give_back(*number, ended)
            }
        }
    }

    /// Executes a command about a transport interface or an indirection table.
    pub(crate) fn on_interface(&self, command: &Interface) -> Answer {
        self.change().on_interface(command)
    }

    /// Executes a command about steering.
    pub(crate) fn on_flow(&self, shared: &Shared, command: &Flow) -> Answer {
        let budget = &shared.budget;
        match command {
            Flow::CreateFlowTable(wanted) => self.change().steering.create_table(wanted),
            Flow::ModifyFlowTable(wanted) => self.change().steering.modify_table(wanted),
            Flow::DestroyFlowTable(table) => self.change().steering.destroy_table(table),
            Flow::SetFlowTableRoot(wanted) => self.change().steering.set_root(wanted),
            Flow::CreateFlowGroup(wanted) => self.change().steering.create_group(budget, wanted),
            Flow::DestroyFlowGroup(group) => self.change().steering.destroy_group(group),
            Flow::SetFlowTableEntry(wanted) => self.change().steering.set_entry(budget, wanted),
            Flow::DeleteFlowTableEntry(entry) => self.change().steering.delete_entry(entry),
            Flow::AllocFlowCounter(wanted) => self.change().steering.counters.alloc(wanted),
            Flow::DeallocFlowCounter(counter) => self.change().steering.counters.dealloc(counter),
            Flow::QueryFlowCounter(asked) => self.tables().steering.counters.query(asked),
        }
    }

    /// The send queue of this number. No table is held while a queue is: one that runs may hand a
    /// frame back to us.
    fn sends(&self, number: u32) -> Result<Arc<Sends>, Status> {
        self.tables().sends.get(&number).cloned().ok_or(Status::BadResource)
    }

    fn create_sends(self: &Arc<Nic>, shared: &Arc<Shared>, wanted: &CreateSq) -> Answer {
        let domain = self.tables().domain(wanted)?;
        let queue = Sends::new(shared, self, wanted, domain)?;
        self.change().make(|tables, number| {
            queue.set_number(number);
            tables.sends.insert(number, queue)
        })
    }

    fn destroy_sends(&self, number: u32) -> Answer {
        self.sends(number)?.stop();
        let mut tables = self.change();
        tables.sends.remove(&number).ok_or(Status::BadResource)?;
        tables.numbers.give_back(number).and_then(|()| done())
    }
}

/// The answer to a query of a context.
fn queried(context: &Context) -> Answer {
    let mut answer = vec![0; QUERY_HEAD];
    answer.extend(context.bytes());
    Ok(answer)
}

impl Tables {
    /// Makes an object with a number that none has.
    fn make<T>(&mut self, insert: impl FnOnce(&mut Tables, u32) -> T) -> Answer {
        let new = self.numbers.take()?;
        insert(self, new);
        number(new)
    }

    /// The number of an object that `ended` is free again; nothing ended if there was none.
    fn give_back(&mut self, number: u32, ended: bool) -> Answer {
        if !ended {
            return Err(Status::BadResource);
        }
        self.numbers.give_back(number).and_then(|()| done())
    }

    fn receives(&self, number: u32) -> Result<&Receives, Status> {
        self.receives.get(&number).ok_or(Status::BadResource)
    }

    /// The transport domain of the interface that a new send queue names, if it does.
    fn domain(&self, wanted: &CreateSq) -> Result<u32, Status> {
        const DOMAIN: Field = Field::new(0x128, 24);
        if wanted.tis_lst_sz == 0 {
            return Ok(0);
        }
        let context = self.tiss.get(&wanted.tis_num_0).ok_or(Status::BadResource)?;
        Ok(context.get32(DOMAIN))
    }

    fn create_receives(&mut self, shared: &Shared, wanted: &CreateRq) -> Answer {
        let queue = Receives::new(shared, wanted)?;
        self.make(|tables, number| tables.receives.insert(number, queue))
    }

    /// Commands about transport interfaces and indirection tables.
    fn on_interface(&mut self, command: &Interface) -> Answer {
        match command {
            Interface::CreateTis(wanted) => {
                let context = wanted.context.clone().ok_or(Status::BadInputLength)?;
                self.make(|tables, number| tables.tiss.insert(number, context))
            }
            Interface::ModifyTis(ModifyTis { tisn, new }) => {
                let context = new.context.clone().ok_or(Status::BadInputLength)?;
                *self.tiss.get_mut(tisn).ok_or(Status::BadResource)? = context;
                done()
            }
            Interface::QueryTis(About { number }) => {
                let mut answer = vec![0; 8];
                answer.extend(self.tiss.get(number).ok_or(Status::BadResource)?.bytes());
                Ok(answer)
            }
            Interface::DestroyTis(About { number }) => {
                let ended = self.tiss.remove(number).is_some();
                self.give_back(*number, ended)
            }
            Interface::CreateTir(wanted) => {
                let tir = Tir::new(wanted)?;
                self.make(|tables, number| tables.tirs.insert(number, tir))
            }
            Interface::ModifyTir(wanted) => {
                let tir = self.tirs.get_mut(&wanted.tirn).ok_or(Status::BadResource)?;
                tir.modify(wanted).and_then(|()| done())
            }
            Interface::DestroyTir(About { number }) => {
                let ended = self.tirs.remove(number).is_some();
                self.give_back(*number, ended)
            }
            Interface::CreateRqt(wanted) => {
                let table = tir::table(wanted)?;
                self.make(|tables, number| tables.tables.insert(number, table))
            }
            Interface::ModifyRqt(wanted) => {
                let table = self.tables.get_mut(&wanted.rqtn).ok_or(Status::BadResource)?;
                if wanted.rqn_list {
                    *table = tir::table(&wanted.new)?;
                }
                done()
            }
            Interface::DestroyRqt(About { number }) => {
                let ended = self.tables.remove(number).is_some();
                self.give_back(*number, ended)
            }
        }
    }
}

impl FrameSink for Nic {
    fn frame(&self, bytes: &[u8]) {
        let Some(hca) = self.hca.get().and_then(Weak::upgrade) else { return };
        let Some(frame) = Frame::parse(bytes) else { return };
        self.deliver(&hca, &frame, bytes, |_| true);
    }
}
