//! The objects that commands make, by number. The tables' lock is never held while the HCA is called: its callbacks come
//! with its own locks held.

use crate::cq::Cq;
use crate::general_object::LOG_QP_NUMBERS;
use crate::mkey::KeyObject;
use crate::names::Names;
use crate::opcode::Status;
use crate::qp::Queues;
use crate::request::RequestId;
use crate::share::Shares;
use crate::srq::Srq;
use crate::uar::Uar;
use crate::umr::OwnWork;
use crate::user_memory::UserMemory;
use hca::PdId;
use hca::{AddressHandle, AhAttr, Device, Pd, Xrcd};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

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
    /// What it does besides sending.
    pub(crate) work: Arc<OwnWork>,
    /// Of one that only changes memory keys: the HCA's half never leaves RESET.
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
        work: Arc<OwnWork>,
    ) -> Arc<QpPair> {
        Arc::new_cyclic(|this| QpPair {
            queues,
            back,
            send_cq,
            work,
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

    /// What the HCA has not begun of a send queue that drained is the guest's alone again, which may change it.
    pub(crate) fn rewind(&self) {
        let Ok(taken) = self.back.withdraw_sends() else { return };
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

/// Numbers that are given out, the least free one first; each step takes time that hardly depends on how many are out.
pub(crate) struct Numbers {
    all: Range<u32>,
    /// Runs of numbers that nobody has, none next to another: where each begins, and where it has ended.
    free: BTreeMap<u32, u32>,
}

impl Numbers {
    /// All of them are free.
    pub(crate) fn within(all: Range<u32>) -> Numbers {
        let mut numbers = Numbers { all: all.clone(), free: BTreeMap::new() };
        numbers.file(all);
        numbers
    }

    fn file(&mut self, run: Range<u32>) {
        if !run.is_empty() {
            self.free.insert(run.start, run.end);
        }
    }

    /// The run that a free number is in.
    fn run(&self, number: u32) -> Option<Range<u32>> {
        let (&start, &end) = self.free.range(..=number).next_back()?;
        (number < end).then_some(start..end)
    }

    /// Gives out the least free number.
    ///
    /// # Errors
    /// [`Status::NoResources`] when none is free.
    pub(crate) fn take(&mut self) -> Result<u32, Status> {
        let (start, end) = self.free.pop_first().ok_or(Status::NoResources)?;
        self.file(start + 1..end);
        Ok(start)
    }

    /// Gives out this number.
    ///
    /// # Errors
    /// [`Status::NoResources`] when it is not free.
    pub(crate) fn claim(&mut self, number: u32) -> Result<(), Status> {
        let run = self.run(number).ok_or(Status::NoResources)?;
        self.free.remove(&run.start);
        self.file(run.start..number);
        self.file(number + 1..run.end);
        Ok(())
    }

    /// The number is free again.
    ///
    /// # Errors
    /// [`Status::BadResource`] when it was not given out.
    pub(crate) fn give_back(&mut self, number: u32) -> Result<(), Status> {
        if !self.all.contains(&number) || self.run(number).is_some() {
            return Err(Status::BadResource);
        }
        let before = number.checked_sub(1).and_then(|before| self.run(before));
        let start = before.map_or(number, |run| run.start);
        let end = self.free.remove(&(number + 1)).unwrap_or(number + 1);
        self.free.insert(start, end);
        Ok(())
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
    /// Destroys everything, users before what they use; nothing touches memory through any of it afterwards.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_least_free_number_is_given_out() {
        let mut numbers = Numbers::within(1..5);
        assert_eq!([(); 4].map(|()| numbers.take()), [Ok(1), Ok(2), Ok(3), Ok(4)]);
        assert_eq!(numbers.take(), Err(Status::NoResources));
        for number in [3, 1] {
            assert_eq!(numbers.give_back(number), Ok(()));
            assert_eq!(numbers.give_back(number), Err(Status::BadResource), "twice");
        }
        assert_eq!([(); 2].map(|()| numbers.take()), [Ok(1), Ok(3)]);
        for stranger in [0, 5, u32::MAX] {
            assert_eq!(numbers.give_back(stranger), Err(Status::BadResource));
            assert_eq!(numbers.claim(stranger), Err(Status::NoResources));
        }
        assert_eq!(Numbers::within(7..7).take(), Err(Status::NoResources));
        let mut last = Numbers::within(u32::MAX - 1..u32::MAX);
        assert_eq!(last.take(), Ok(u32::MAX - 1));
        assert_eq!(last.give_back(u32::MAX - 1), Ok(()));
    }

    /// Against a plain set, in an order that is the same each time.
    #[test]
    fn any_order_of_steps_is_as_a_set_of_free_numbers() {
        const ALL: Range<u32> = 1..24;
        let mut numbers = Numbers::within(ALL);
        let mut free: BTreeSet<u32> = ALL.collect();
        let mut seed = 1u32;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let number = (seed >> 8) % 26;
            match seed >> 30 {
                0 => assert_eq!(numbers.take(), free.pop_first().ok_or(Status::NoResources)),
                1 => {
                    let claimed = free.remove(&number).then_some(()).ok_or(Status::NoResources);
                    assert_eq!(numbers.claim(number), claimed);
                }
                _ => {
                    let given = ALL.contains(&number) && free.insert(number);
                    let back = given.then_some(()).ok_or(Status::BadResource);
                    assert_eq!(numbers.give_back(number), back);
                }
            }
            let runs: Vec<_> = numbers.free.iter().collect();
            assert!(runs.windows(2).all(|two| two[0].1 < two[1].0), "{runs:?} are apart");
        }
    }

    /// With a search among those that are out this would take minutes.
    #[test]
    fn many_numbers_are_no_slower_than_few() {
        let mut numbers = Numbers::within(1..1 << 24);
        for round in 0..3 {
            for number in 1..=300_000 {
                assert_eq!(numbers.take(), Ok(number), "round {round}");
            }
            for number in (1..=300_000).rev() {
                assert_eq!(numbers.give_back(number), Ok(()), "round {round}");
            }
        }
    }
}
