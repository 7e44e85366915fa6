//! Asynchronous events on their way: from the HCA's values to the contexts and objects that they
//! are about.

use crate::base::acks::Acks;
use crate::base::fifo::Fifo;
use engine_thread::lock;
use hca::{AsyncEvent, EventSink, EventSource, EventType, Object};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// One event on its way to the program.
pub struct Entry {
    /// The C object's address, or the port number.
    pub element: u64,
    pub event: EventType,
    pub acks: Option<Arc<Acks>>,
}

/// The events of one context.
pub type Events = Fifo<Entry>;

/// Where the events of one object go.
struct EventTarget {
    events: Arc<Events>,
    element: u64,
    acks: Arc<Acks>,
}

/// Nearly always one.
type Targets = SmallVec<[EventTarget; 1]>;

/// Takes the HCA's events and queues them at the contexts concerned.
#[derive(Default)]
pub struct Sink {
    /// By the address of the HCA's object, which stays the same while the object lives. A shared
    /// queue pair has one for each of its C objects. A tree, whose nodes are small: one large piece
    /// of memory could be refused.
    routes: Mutex<BTreeMap<usize, Targets>>,
    contexts: Mutex<Vec<Arc<Events>>>,
}

impl Sink {
    fn routes(&self) -> MutexGuard<'_, BTreeMap<usize, Targets>> {
        lock(&self.routes)
    }

    fn contexts(&self) -> MutexGuard<'_, Vec<Arc<Events>>> {
        lock(&self.contexts)
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
        self.routes().entry(address).or_default().push(EventTarget { events, element, acks });
    }

    /// The C object at `element` is being destroyed: no event of it reaches the program from now
    /// on, and the program has acknowledged those it got when this returns.
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

    fn to_object(&self, object: &Object, event: EventType) {
        let address = object.as_ptr().cast::<()>() as usize;
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
            EventSource::Cq(object)
            | EventSource::Qp(object)
            | EventSource::Srq(object)
            | EventSource::Wq(object) => self.to_object(&object, event.event),
            EventSource::Port(port) => self.to_all(u64::from(port), event.event),
            EventSource::Device => self.to_all(0, event.event),
        }
    }
}
