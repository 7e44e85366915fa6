//! Asynchronous events: from the HCA's values to the program's objects and their contexts' `async_fd`.

use crate::abi::{ibv_async_event, ibv_context};
use crate::acks::Acks;
use crate::context::Context;
use crate::cq::Cq;
use crate::ffi::{INVALID, Res, arg, arg_mut, count, quiet};
use crate::fifo::{self, Fifo};
use crate::object::object;
use crate::qp::Qp;
use crate::srq::Srq;
use crate::wq::Wq;
use hca::{AsyncEvent, EventSink, EventSource, EventType};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One event on its way to the program.
pub struct Entry {
    /// The C object's address, or the port number.
    element: u64,
    event: EventType,
    acks: Option<Arc<Acks>>,
}

/// The events of one context.
pub type Events = Fifo<Entry>;

/// Where the events of one object go.
struct Route {
    events: Arc<Events>,
    element: u64,
    acks: Arc<Acks>,
}

/// Takes the HCA's events and queues them at the contexts concerned.
#[derive(Default)]
pub struct Sink {
    /// By the address of the HCA's object, which stays the same while the object lives. A shared queue pair has one for
    /// each of its C objects.
    /// A tree, whose nodes are small: one large piece of memory could be refused.
    routes: Mutex<BTreeMap<usize, Vec<Route>>>,
    contexts: Mutex<Vec<Arc<Events>>>,
}

impl Sink {
    fn routes(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<Route>>> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contexts(&self) -> MutexGuard<'_, Vec<Arc<Events>>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A context that gets the events of ports and of the device.
    pub fn add_context(&self, events: Arc<Events>) {
        self.contexts().push(events);
    }

    /// The context is being closed.
    pub fn remove_context(&self, events: &Arc<Events>) {
        self.contexts().retain(|known| !Arc::ptr_eq(known, events));
    }

    /// Events of `object` go to `events` as events of the C object at `element`.
    pub fn add_object<T>(
        &self,
        object: &Arc<T>,
        events: Arc<Events>,
        element: u64,
        acks: Arc<Acks>,
    ) {
        let address = Arc::as_ptr(object) as usize;
        self.routes().entry(address).or_default().push(Route { events, element, acks });
    }

    /// The C object at `element` is being destroyed: no event of it reaches the program from now on, and the program has
    /// acknowledged those it got when this returns.
    pub fn remove_object<T>(&self, object: &Arc<T>, element: u64) {
        let address = Arc::as_ptr(object) as usize;
        let mut all = self.routes();
        let Some(routes) = all.get_mut(&address) else { return };
        let found = routes.iter().position(|route| route.element == element);
        let route = found.map(|at| routes.swap_remove(at));
        if routes.is_empty() {
            all.remove(&address);
        }
        drop(all);
        if let Some(route) = route {
            route.events.remove(|entry| entry.acks.is_some() && entry.element == route.element);
            route.acks.wait();
        }
    }

    fn to_object(&self, address: usize, event: EventType) {
        for route in self.routes().get(&address).into_iter().flatten() {
            let acks = Some(route.acks.clone());
            route.events.push(Entry { element: route.element, event, acks });
        }
    }

    fn to_all(&self, element: u64, event: EventType) {
        for events in self.contexts().iter() {
            events.push(Entry { element, event, acks: None });
        }
    }
}

impl EventSink for Sink {
    fn event(&self, event: AsyncEvent) {
        match event.source {
            EventSource::Cq(cq) => self.to_object(cq.as_ptr() as usize, event.event),
            EventSource::Qp(qp) => self.to_object(qp.as_ptr() as usize, event.event),
            EventSource::Srq(srq) => self.to_object(srq.as_ptr() as usize, event.event),
            EventSource::Wq(wq) => self.to_object(wq.as_ptr() as usize, event.event),
            EventSource::Port(port) => self.to_all(u64::from(port), event.event),
            EventSource::Device => self.to_all(0, event.event),
        }
    }
}

/// `ibv_get_async_event(3)`: waits unless `async_fd` was made non-blocking. A cancellation point.
pub(crate) unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    loop {
        let fd = count(|| {
            // SAFETY: the program passes an open context.
            let context = unsafe { Context::of(context) }?;
            // Before the wait: an event may not lose its unit to a call that fails.
            if event.is_null() { Err(INVALID) } else { Ok(context.events().fd()) }
        });
        if fd < 0 || !fifo::wait(fd) {
            return -1;
        }
        // SAFETY: the program's arguments.
        let taken = count(|| unsafe { take_event(context, event) });
        if taken != NONE_LEFT {
            return taken;
        }
    }
}

/// The event was removed between waiting and taking.
const NONE_LEFT: c_int = 1;

/// # Safety
/// The context is null or open, the struct null or free to fill.
unsafe fn take_event(context: *mut ibv_context, event: *mut ibv_async_event) -> Res<c_int> {
    // SAFETY: the caller's promise.
    let (context, event) = unsafe { (Context::of(context)?, arg_mut(event)?) };
    let taken = context.events().take(|entry| {
        if let Some(acks) = &entry.acks {
            acks.delivered();
        }
        entry
    });
    let Some(entry) = taken else { return Ok(NONE_LEFT) };
    event.element = entry.element;
    event.event_type = entry.event as u32;
    Ok(0)
}

/// `ibv_ack_async_event(3)`.
pub(crate) unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    quiet((), || {
        // SAFETY: the program passes an event that `ibv_get_async_event` filled.
        let event = unsafe { arg(event) }?;
        let element = event.element as usize;
        match event.event_type {
            0 => {
                // SAFETY: destroying the CQ waits for this acknowledgement, so it is alive.
                unsafe { object::<Cq>(element as *mut _) }?.async_acks().acknowledge(1);
            }
            1..=7 | 16 => {
                // SAFETY: destroying the QP waits for this acknowledgement, so it is alive.
                unsafe { object::<Qp>(element as *mut _) }?.acks().acknowledge(1);
            }
            14 | 15 => {
                // SAFETY: destroying the SRQ waits for this acknowledgement, so it is alive.
                unsafe { object::<Srq>(element as *mut _) }?.acks().acknowledge(1);
            }
            19 => {
                // SAFETY: destroying the WQ waits for this acknowledgement, so it is alive.
                unsafe { object::<Wq>(element as *mut _) }?.acks().acknowledge(1);
            }
            _ => {}
        }
        Ok(())
    });
}
