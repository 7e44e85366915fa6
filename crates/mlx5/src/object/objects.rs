//! The objects that commands make, by number. The tables' lock is never held while the HCA is
//! called: its callbacks come with its own locks held.

use crate::keys::changer::Changer;
use crate::keys::mkey::KeyObject;
use crate::layout::limits::LOG_QP_NUMBERS;
use crate::layout::request::RequestId;
use crate::machine::share::Shares;
use crate::machine::table::Table;
use crate::machine::user_memory::UserMemory;
use crate::object::cq::Cq;
use crate::object::names::Names;
use crate::object::qp::Queues;
use crate::object::shared::Shared;
use crate::object::srq::Srq;
use crate::object::uar::Uar;
use engine_thread::lock;
use hca::PdId;
use hca::{AddressHandle, AhAttr, Device, Pd, Xrcd};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};

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
    /// On whose behalf its requests change keys.
    pub(crate) changer: Changer,
    pub(crate) shared: Weak<Shared>,
    /// The state of one that only changes memory keys: the HCA's half never leaves RESET.
    pub(crate) state: Shares<hca::QpState>,
    /// What such a one has left is done later.
    pub(crate) appointed: AtomicBool,
    pub(crate) this: Weak<QpPair>,
    /// It may copy memory.
    pub(crate) copies: AtomicBool,
    /// Destinations that datagrams went to.
    handles: Mutex<Vec<(AhAttr, Arc<AddressHandle>)>>,
}

/// Destinations that a queue pair keeps at hand.
const KEPT_HANDLES: usize = 16;

impl QpPair {
    pub(crate) fn new(
        queues: Arc<Queues>,
        back: Arc<hca::Qp>,
        send_cq: Option<Arc<Cq>>,
        changer: Changer,
        shared: Weak<Shared>,
    ) -> Arc<QpPair> {
        Arc::new_cyclic(|this| QpPair {
            queues,
            back,
            send_cq,
            changer,
            shared,
            state: Shares::new(hca::QpState::Reset),
            appointed: AtomicBool::new(false),
            this: this.clone(),
            copies: AtomicBool::new(false),
            handles: Mutex::default(),
        })
    }

    /// Nothing of it touches memory afterwards.
    pub(crate) fn destroy(&self) {
        *self.state.lock() = hca::QpState::Reset;
        self.back.destroy();
    }

    /// What the HCA has not begun of a send queue that drained is the guest's alone again, which
    /// may change it.
    pub(crate) fn rewind(&self) {
        let Ok(taken) = self.back.withdraw_sends() else { return };
        if let Some(first) = taken.first() {
            self.queues.rewind(RequestId::from_wr_id(first.wr_id).counter);
        }
    }

    /// The handle for a destination.
    pub(crate) fn handle(&self, device: &Device, attr: AhAttr) -> hca::Result<Arc<AddressHandle>> {
        let mut handles = lock(&self.handles);
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

/// All objects of a function.
#[derive(Default)]
pub(crate) struct Objects {
    pub(crate) uars: Table<Arc<Uar>>,
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
    /// Destroys everything, users before what they use; nothing touches memory through any of it
    /// afterwards.
    pub(crate) fn clear(&self, device: &Device) {
        self.qps.take_all().into_iter().for_each(|pair| pair.destroy());
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
        self.uars.take_all();
        self.names.clear();
        for first in self.qp_numbers.take_numbers() {
            device.give_qp_numbers_back(first, 1 << LOG_QP_NUMBERS);
        }
    }
}
