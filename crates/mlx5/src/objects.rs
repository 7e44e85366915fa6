//! The objects that commands make, by number. The tables' lock is never held while the HCA is called: its callbacks come
//! with its own locks held.

use crate::cq::Cq;
use crate::general_object::LOG_QP_NUMBERS;
use crate::mkey::KeyObject;
use crate::names::Names;
use crate::opcode::Status;
use crate::qp::Queues;
use crate::request::RequestId;
use crate::srq::Srq;
use crate::umr::Waiting;
use crate::user_memory::UserMemory;
use hca::key::PdId;
use hca::{AddressHandle, AhAttr, Device, Pd, SendOp, Xrcd};
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A completion queue and the HCA's half of it.
#[derive(Clone)]
pub(crate) struct CqPair {
    pub(crate) front: Arc<Cq>,
    pub(crate) back: Arc<hca::Cq>,
}

/// A shared receive queue and the HCA's half of it.
#[derive(Clone)]
pub(crate) struct SrqPair {
    pub(crate) front: Arc<Srq>,
    pub(crate) back: Arc<hca::Srq>,
}

/// A queue pair and the HCA's half of it.
pub(crate) struct QpPair {
    pub(crate) queues: Arc<Queues>,
    pub(crate) back: Arc<hca::Qp>,
    pub(crate) send_cq: Option<Arc<Cq>>,
    /// Changes of keys that wait for their turn.
    pub(crate) waiting: Arc<Waiting>,
    /// Of one that only changes memory keys: the HCA's half never leaves RESET.
    pub(crate) state: Mutex<hca::QpState>,
    /// It may copy memory.
    pub(crate) copies: AtomicBool,
    /// Destinations that datagrams went to.
    handles: Mutex<Vec<(AhAttr, Arc<AddressHandle>)>>,
}

/// Destinations that a queue pair keeps at hand.
const KEPT_HANDLES: usize = 64;

impl QpPair {
    pub(crate) fn new(
        queues: Arc<Queues>,
        back: Arc<hca::Qp>,
        send_cq: Option<Arc<Cq>>,
        waiting: Arc<Waiting>,
    ) -> QpPair {
        let state = Mutex::new(hca::QpState::Reset);
        let copies = AtomicBool::new(false);
        QpPair { queues, back, send_cq, waiting, state, copies, handles: Mutex::default() }
    }

    /// What the HCA has not begun of a send queue that drained is the guest's alone again, which may change it.
    pub(crate) fn rewind(&self) {
        let Ok(taken) = self.back.withdraw_sends() else { return };
        for request in &taken {
            if let SendOp::Custom(token) = request.op {
                self.waiting.forget(token);
            }
        }
        if let Some(first) = taken.first() {
            self.queues.rewind(RequestId::from_wr_id(first.wr_id).counter);
        }
    }

    /// The handle for a destination.
    pub(crate) fn handle(&self, device: &Device, attr: AhAttr) -> hca::Result<Arc<AddressHandle>> {
        let mut handles = self.handles.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, handle)) = handles.iter().find(|(known, _)| *known == attr) {
            return Ok(handle.clone());
        }
        let handle = device.create_ah(self.back.pd(), &attr)?;
        if handles.len() == KEPT_HANDLES {
            handles.remove(0);
        }
        handles.push((attr, handle.clone()));
        Ok(handle)
    }
}

/// Objects of one kind by number.
pub(crate) struct Table<T>(RwLock<HashMap<u32, T>>);

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(RwLock::default())
    }
}

impl<T: Clone> Table<T> {
    pub(crate) fn get(&self, number: u32) -> Result<T, Status> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.get(&number).cloned().ok_or(Status::BadResource)
    }

    pub(crate) fn insert(&self, number: u32, object: T) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(number, object);
    }

    pub(crate) fn remove(&self, number: u32) -> Result<T, Status> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.remove(&number).ok_or(Status::BadResource)
    }

    pub(crate) fn contains(&self, number: u32) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains_key(&number)
    }

    /// All numbers; none are left.
    pub(crate) fn take_numbers(&self) -> Vec<u32> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.drain().map(|(number, _)| number).collect()
    }

    /// All objects; none are left.
    pub(crate) fn take_all(&self) -> Vec<T> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.drain().map(|(_, object)| object).collect()
    }
}

/// Numbers that are given out, the least free one first.
pub(crate) struct Numbers<T> {
    used: HashSet<T>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Numbers<T> {
        Numbers { used: HashSet::new() }
    }
}

impl<T: Copy + Eq + Hash> Numbers<T> {
    pub(crate) fn take(&mut self, range: impl Iterator<Item = T>) -> Result<T, Status> {
        let mut range = range;
        let free = range.find(|number| !self.used.contains(number)).ok_or(Status::NoResources)?;
        self.used.insert(free);
        Ok(free)
    }

    pub(crate) fn give_back(&mut self, number: T) -> Result<(), Status> {
        if self.used.remove(&number) { Ok(()) } else { Err(Status::BadResource) }
    }
}

/// All objects of a function.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) pds: Table<Arc<Pd>>,
    pub(crate) xrcds: Table<Arc<Xrcd>>,
    pub(crate) cqs: Table<CqPair>,
    pub(crate) srqs: Table<SrqPair>,
    pub(crate) qps: Table<Arc<QpPair>>,
    /// By index.
    pub(crate) mkeys: Table<Arc<KeyObject>>,
    pub(crate) counter_sets: Table<Arc<hca::CounterSet>>,
    pub(crate) user_memories: Table<Arc<UserMemory>>,
    /// First of the queue pair numbers that each general object has.
    pub(crate) qp_numbers: Table<()>,
    /// Domains of PSVs.
    pub(crate) psvs: Table<PdId>,
    pub(crate) names: Arc<Names>,
}

impl Objects {
    /// Destroys everything, users before what they use; nothing touches memory through any of it afterwards.
    pub(crate) fn clear(&self, device: &Device) {
        self.qps.take_all().into_iter().for_each(|pair| pair.back.destroy());
        for pair in self.srqs.take_all() {
            let _ = pair.back.destroy();
        }
        for pair in self.cqs.take_all() {
            let _ = pair.back.destroy();
        }
        for object in self.mkeys.take_all() {
            let _ = device.keys().remove(object.key(), || ());
        }
        self.xrcds.take_all();
        self.pds.take_all();
        self.counter_sets.take_all();
        self.psvs.take_all();
        self.user_memories.take_all();
        self.names.clear();
        for first in self.qp_numbers.take_numbers() {
            device.give_qp_numbers_back(first, 1 << LOG_QP_NUMBERS);
        }
    }
}
