//! Completion queues (IBA 11.2.8): a bounded ring of values, armed for one event at a time.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::{AsyncEvent, CqNotify, EventSource};
use crate::types::{Completion, EventType};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Armed {
    No,
    Solicited,
    Any,
}

struct Ring {
    completions: VecDeque<Completion>,
    /// Entries asked for.
    cqe: u32,
    armed: Armed,
}

impl Ring {
    /// Places there are: drivers round up to a power of two with one to spare, and programs that ask for the bare
    /// minimum live on it (perftest's latency tests ask for 1 and let 2 completions wait).
    fn places(&self) -> usize {
        (self.cqe as usize + 1).next_power_of_two()
    }
}

/// A completion queue. `ring` is the innermost lock of the device: nothing else is taken under it.
pub struct Cq {
    device: Weak<Device>,
    notify: Option<Arc<dyn CqNotify>>,
    ring: Mutex<Ring>,
    /// A completion found no place: no other is taken any more (IBA 11.6.3.2).
    overrun: AtomicBool,
    users: AtomicU32,
    this: Weak<Cq>,
}

impl std::fmt::Debug for Cq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cq").field("cqe", &self.ring().cqe).finish_non_exhaustive()
    }
}

impl Cq {
    pub(crate) fn new(
        device: &Arc<Device>,
        cqe: u32,
        notify: Option<Arc<dyn CqNotify>>,
    ) -> Arc<Cq> {
        Arc::new_cyclic(|this| Cq {
            device: Arc::downgrade(device),
            notify,
            ring: Mutex::new(Ring {
                completions: VecDeque::with_capacity((cqe as usize).min(4096)),
                cqe,
                armed: Armed::No,
            }),
            overrun: AtomicBool::new(false),
            users: AtomicU32::new(0),
            this: this.clone(),
        })
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries the queue can hold.
    pub fn capacity(&self) -> u32 {
        self.ring().cqe
    }

    /// Takes up to `max` completions. When the ring is empty the caller's thread makes the device's progress first, so a
    /// polling program needs no other thread (D1).
    ///
    /// # Errors
    /// [`Error::Lost`] when it is empty and overran, or the device is lost.
    pub fn poll(&self, max: usize, take: &mut dyn FnMut(Completion)) -> Result<usize> {
        let taken = self.take(max, take)?;
        if taken > 0 || max == 0 {
            return Ok(taken);
        }
        if let Some(device) = self.device.upgrade() {
            device.alive()?;
            device.progress();
        }
        self.take(max, take)
    }

    fn take(&self, max: usize, take: &mut dyn FnMut(Completion)) -> Result<usize> {
        let mut ring = self.ring();
        if max > 0 && ring.completions.is_empty() && self.overran() {
            return Err(Error::Lost("the completion queue overran: create it larger"));
        }
        let count = max.min(ring.completions.len());
        ring.completions.drain(..count).for_each(take);
        Ok(count)
    }

    /// Asks for one event at the next completion, or at the next solicited one. The stronger of two requests holds
    /// (IBA 11.4.2.2).
    pub fn arm(&self, solicited_only: bool) {
        let mut ring = self.ring();
        ring.armed = match (ring.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
    }

    /// Changes the capacity.
    ///
    /// # Errors
    /// [`Error::Invalid`] when more completions wait than would fit, or out of the device's limits.
    pub fn resize(&self, cqe: u32) -> Result<()> {
        let max = self.device.upgrade().map_or(u32::MAX, |d| d.attr().max_cqe);
        let mut ring = self.ring();
        if cqe == 0 || cqe > max {
            return Err(Error::Invalid("completion queue size out of range"));
        }
        if ring.completions.len() > cqe as usize {
            return Err(Error::Invalid("more completions wait than the new size holds"));
        }
        ring.cqe = cqe;
        Ok(())
    }

    /// Ends the queue's life.
    ///
    /// # Errors
    /// [`Error::Busy`] while a QP or SRQ uses it.
    pub fn destroy(&self) -> Result<()> {
        if self.users.load(Relaxed) > 0 {
            return Err(Error::Busy("queue pairs still use the completion queue"));
        }
        Ok(())
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Relaxed);
    }

    pub(crate) fn drop_user(&self) {
        self.users.fetch_sub(1, Relaxed);
    }

    /// Forgets completions of a destroyed QP, as a driver cleans its CQ.
    pub(crate) fn forget(&self, qp_num: u32) {
        self.ring().completions.retain(|c| c.qp_num != qp_num);
    }

    pub(crate) fn push(&self, completion: Completion) {
        let mut ring = self.ring();
        if self.overran() {
            return;
        }
        if ring.completions.len() >= ring.places() {
            self.overrun.store(true, Relaxed);
            drop(ring);
            return self.report_overrun();
        }
        let wanted = match ring.armed {
            Armed::No => false,
            Armed::Solicited => completion.solicited,
            Armed::Any => true,
        };
        ring.completions.push_back(completion);
        if wanted {
            ring.armed = Armed::No;
            drop(ring);
            if let Some(notify) = &self.notify {
                notify.notify();
            }
        }
    }

    /// Whether completions were lost.
    pub(crate) fn overran(&self) -> bool {
        self.overrun.load(Relaxed)
    }

    /// Tells the program, and has every queue pair that completes here look: it cannot go on.
    fn report_overrun(&self) {
        let Some(device) = self.device.upgrade() else { return };
        let (event, source) = (EventType::CqErr, EventSource::Cq(self.this.clone()));
        device.raise(AsyncEvent { event, source });
        device.rouse_users_of(self);
    }
}
