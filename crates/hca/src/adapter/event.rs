//! Events as values: what a device tells its front end outside of completions.

use std::any::Any;
use std::sync::Weak;
use transport::PageFault;
use transport::values::{Completion, EventType};

/// An object that an event is about: its address tells which, or it is a [`Cq`](crate::Cq),
/// [`Qp`](crate::Qp), [`Srq`](crate::Srq) or [`Wq`](crate::Wq) once it is upgraded.
pub type Object = Weak<dyn Any + Send + Sync>;

/// What an asynchronous event is about.
#[derive(Clone, Debug)]
pub enum EventSource {
    /// A completion queue.
    Cq(Object),
    /// A queue pair.
    Qp(Object),
    /// A shared receive queue.
    Srq(Object),
    /// A work queue.
    Wq(Object),
    /// A port, from 1.
    Port(u32),
    /// The device itself.
    Device,
}

/// An asynchronous event.
#[derive(Clone, Debug)]
pub struct AsyncEvent {
    /// What happened.
    pub event: EventType,
    /// The object it happened to.
    pub source: EventSource,
}

/// Takes asynchronous events. Called with locks of the device held: it must only queue and wake.
pub trait EventSink: Send + Sync {
    /// One event.
    fn event(&self, event: AsyncEvent);
    /// Queue pair `qp` waits for memory. `true`: [`resume`](crate::Qp::resume) will be called for
    /// it.
    fn page_fault(&self, qp: u32, fault: PageFault) -> bool {
        let _ = (qp, fault);
        false
    }
}

/// Takes completion events of armed CQs. Called with locks of the device held: it must only queue
/// and wake.
pub trait CqNotify: Send + Sync {
    /// The CQ has a completion that was asked for.
    fn notify(&self);
}

/// Takes the completions of a queue as they come, for a front end with queues of its own. Called
/// with a QP's lock held: it must not wait for anybody, nor call the device.
pub trait CompletionSink: Send + Sync {
    /// One completion. `false` when there is no place for it: the queue has overrun then, and takes
    /// no other.
    fn completed(&self, completion: Completion) -> bool;
}
