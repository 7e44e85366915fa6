//! The Ethernet side of a RoCE port: what a network driver makes to send and receive frames. Queues, transport interfaces
//! and steering tables are kept as objects and honoured as far as frames need them; frames travel on the HCA's Ethernet.
//!
//! Frames arrive in whichever thread receives for the HCA. It holds the tables for reading until a frame is in guest memory, so
//! that a command that takes a queue away, which holds them for writing, ends what reaches memory through it.

pub(crate) mod caps;
pub(crate) mod counters;
mod criteria;
mod flow_counter;
mod frame;
mod opcode;
mod queue;
mod receive;
mod registers;
mod send;
mod steering;
mod tir;
mod users;
mod vport;

use crate::bits::Field;
use crate::command::{OBJECT, done, number};
use crate::function::Shared;
use crate::objects::Numbers;
use crate::opcode::{Answer, Status};
use crate::uar::Uar;
use hca::Device;
use link::FrameSink;
use receive::Receives;
use send::Sends;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use steering::Steering;
use tir::Tir;

pub(crate) use registers::register;
pub(crate) use users::{Role, named, role, sends_frames};
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
    tiss: HashMap<u32, Vec<u8>>,
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

/// All of it.
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
        self.vport.set_mac(hca.mac().unwrap_or_default());
        hca.set_frame_sink(self.clone());
    }

    fn tables(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
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

    /// Hands a frame that the port itself sent, from the transport `domain`, to those of its queues that are to see it.
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

    /// Executes a command about these objects; "bad operation" for any other.
    pub(crate) fn execute(
        &self,
        opcode: u16,
        shared: &Arc<Shared>,
        op_mod: u16,
        input: &[u8],
    ) -> Answer {
        match opcode {
            opcode::QUERY_NIC_VPORT_CONTEXT => self.vport.query(shared.port.guid(), input),
            opcode::MODIFY_NIC_VPORT_CONTEXT => self.vport.modify(input),
            opcode::QUERY_VPORT_STATE => self.vport.state(),
            opcode::MODIFY_VPORT_STATE => self.vport.set_state(shared, input),
            opcode::SET_ROCE_ADDRESS => vport::set_address(&shared.hca, input),
            opcode::CREATE_FLOW_TABLE => self.change().steering.create_table(input),
            opcode::MODIFY_FLOW_TABLE => self.change().steering.modify_table(input),
            opcode::DESTROY_FLOW_TABLE => self.change().steering.destroy_table(input),
            opcode::SET_FLOW_TABLE_ROOT => self.change().steering.set_root(op_mod, input),
            opcode::CREATE_FLOW_GROUP => self.change().steering.create_group(&shared.budget, input),
            opcode::DESTROY_FLOW_GROUP => self.change().steering.destroy_group(input),
            opcode::SET_FLOW_TABLE_ENTRY => {
                self.change().steering.set_entry(&shared.budget, op_mod, input)
            }
            opcode::ALLOC_FLOW_COUNTER => self.change().steering.counters.alloc(input),
            opcode::DEALLOC_FLOW_COUNTER => self.change().steering.counters.dealloc(input),
            opcode::QUERY_FLOW_COUNTER => self.tables().steering.counters.query(input),
            opcode::DELETE_FLOW_TABLE_ENTRY => self.change().steering.delete_entry(input),
            opcode::CREATE_SQ | opcode::MODIFY_SQ | opcode::QUERY_SQ | opcode::DESTROY_SQ => {
                self.execute_on_sends(opcode, shared, input)
            }
            other => self.execute_on_others(other, shared, input),
        }
    }

    /// Commands about send queues. No table is held while a queue is: one that runs may hand a frame back to us.
    fn execute_on_sends(&self, opcode: u16, shared: &Arc<Shared>, input: &[u8]) -> Answer {
        let object = OBJECT.get32(input);
        if opcode == opcode::CREATE_SQ {
            let domain = self.tables().domain(input)?;
            let queue = Sends::new(shared, input, domain)?;
            return self.change().make(|tables, number| {
                queue.set_number(number);
                tables.sends.insert(number, queue)
            });
        }
        let queue = self.tables().sends.get(&object).cloned().ok_or(Status::BadResource)?;
        match opcode {
            opcode::MODIFY_SQ => queue.modify(input).and_then(|()| done()),
            opcode::QUERY_SQ => queried(&queue.context()),
            _ => {
                queue.stop();
                let mut tables = self.change();
                tables.sends.remove(&object).ok_or(Status::BadResource)?;
                tables.numbers.give_back(object).and_then(|()| done())
            }
        }
    }

    fn execute_on_others(&self, opcode: u16, shared: &Shared, input: &[u8]) -> Answer {
        let object = OBJECT.get32(input);
        let mut tables = self.change();
        match opcode {
            opcode::CREATE_RQ => {
                let queue = Receives::new(shared, input)?;
                tables.make(|tables, number| tables.receives.insert(number, queue))
            }
            opcode::MODIFY_RQ => {
                let queue = tables.receives.get(&object).ok_or(Status::BadResource)?;
                queue.modify(input).and_then(|()| done())
            }
            opcode::QUERY_RQ => {
                let queue = tables.receives.get(&object).ok_or(Status::BadResource)?;
                queried(&queue.context())
            }
            opcode::DESTROY_RQ => {
                tables.receives.remove(&object).ok_or(Status::BadResource)?;
                tables.numbers.give_back(object).and_then(|()| done())
            }
            other => tables.execute(other, object, input),
        }
    }
}

/// The answer to a query of a context.
fn queried(context: &[u8]) -> Answer {
    let mut answer = vec![0; QUERY_HEAD];
    answer.extend(context);
    Ok(answer)
}

impl Tables {
    /// Makes an object with a number that none has.
    fn make<T>(&mut self, insert: impl FnOnce(&mut Tables, u32) -> T) -> Answer {
        let new = self.numbers.take()?;
        insert(self, new);
        number(new)
    }

    /// The transport domain of the interface that a new send queue names, if it does.
    fn domain(&self, input: &[u8]) -> Result<u32, Status> {
        const DOMAIN: Field = Field::new(0x128, 24);
        if queue::INTERFACES.get(input) == 0 {
            return Ok(0);
        }
        let context = self.tiss.get(&queue::INTERFACE.get32(input)).ok_or(Status::BadResource)?;
        Ok(DOMAIN.get32(context))
    }

    /// Commands about transport interfaces and indirection tables.
    fn execute(&mut self, opcode: u16, object: u32, input: &[u8]) -> Answer {
        const TIS_CONTEXT: std::ops::Range<usize> = 0x20..0x20 + 0xa0;
        const RQT_LIST: Field = Field::new(0x80 + 0x3f, 1);
        match opcode {
            opcode::CREATE_TIS => {
                let context = input.get(TIS_CONTEXT).ok_or(Status::BadInputLength)?.to_vec();
                self.make(|tables, number| tables.tiss.insert(number, context))
            }
            opcode::MODIFY_TIS => {
                let context = input.get(TIS_CONTEXT).ok_or(Status::BadInputLength)?;
                let known = self.tiss.get_mut(&object).ok_or(Status::BadResource)?;
                *known = context.to_vec();
                done()
            }
            opcode::QUERY_TIS => {
                let mut answer = vec![0; 8];
                answer.extend(self.tiss.get(&object).ok_or(Status::BadResource)?);
                Ok(answer)
            }
            opcode::DESTROY_TIS => {
                self.tiss.remove(&object).ok_or(Status::BadResource)?;
                self.numbers.give_back(object).and_then(|()| done())
            }
            opcode::CREATE_TIR => {
                let tir = Tir::new(input)?;
                self.make(|tables, number| tables.tirs.insert(number, tir))
            }
            opcode::MODIFY_TIR => {
                let tir = self.tirs.get_mut(&object).ok_or(Status::BadResource)?;
                tir.modify(input).and_then(|()| done())
            }
            opcode::DESTROY_TIR => {
                self.tirs.remove(&object).ok_or(Status::BadResource)?;
                self.numbers.give_back(object).and_then(|()| done())
            }
            opcode::CREATE_RQT => {
                let table = tir::table(input)?;
                self.make(|tables, number| tables.tables.insert(number, table))
            }
            opcode::MODIFY_RQT => {
                let table = self.tables.get_mut(&object).ok_or(Status::BadResource)?;
                if RQT_LIST.is_set(input) {
                    *table = tir::table(input)?;
                }
                done()
            }
            opcode::DESTROY_RQT => {
                self.tables.remove(&object).ok_or(Status::BadResource)?;
                self.numbers.give_back(object).and_then(|()| done())
            }
            _ => Err(Status::BadOperation),
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
