//! A place to queue work: a stream of a context, whichever it is.

use super::line::{Point, Work};
use super::order::Kind;
use crate::{Context, Error, Res, may_make};
use engine_thread::lock;
use std::sync::{Arc, Mutex};

/// A stream of a context.
#[derive(Clone)]
pub struct Lane {
    context: Arc<Context>,
    kind: Kind,
}

impl Lane {
    /// The stream of a kind.
    pub fn new(context: Arc<Context>, kind: Kind) -> Lane {
        Lane { context, kind }
    }

    /// Its context.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Which it is.
    pub fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Whether a call may queue work that is done in a context which lives, and only there.
    ///
    /// # Errors
    /// What the context died of; those of [`Lane::has_room`].
    pub fn check(&self) -> Res {
        self.context.check().and_then(|()| self.has_room())
    }

    /// Whether there is memory for one more piece of work.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where the system has none.
    pub fn has_room(&self) -> Res {
        may_make()?;
        if self.context.queues.has_room(&self.kind) { Ok(()) } else { Err(Error::OUT_OF_MEMORY) }
    }

    /// Queues work.
    pub fn queue(&self, work: Work) -> Point {
        self.context.queues.queue(&self.kind, work)
    }

    /// Queues work that may fail, which the context dies of then. In one that died it is not done:
    /// what it was to come after may never have come.
    pub fn queue_fallible(&self, work: impl FnOnce() -> Res + Send + 'static) -> Point {
        let context = self.context.clone();
        self.queue(Box::new(move || {
            if let Err(error) = context.check().and_then(|()| work()) {
                context.fail(error);
            }
        }))
    }

    /// Does work in its order, and returns when it is done: by the calling thread itself, where
    /// nothing is before it.
    ///
    /// # Errors
    /// What the work says, and what the context died of.
    pub fn run(&self, work: impl FnOnce() -> Res + Send + 'static) -> Res {
        self.context.check()?;
        if self.context.queues.is_idle(&self.kind) {
            return work();
        }
        let slot = Arc::new(Mutex::new(Ok(())));
        let (answer, context) = (slot.clone(), self.context.clone());
        let work = move || *lock(&answer) = context.check().and_then(|()| work());
        self.queue(Box::new(work)).wait();
        let answer = *lock(&slot);
        answer.and_then(|()| self.context.check())
    }

    /// The place behind everything that was queued.
    pub fn last(&self) -> Point {
        self.context.queues.last(&self.kind)
    }

    /// Whether everything that was queued is done.
    pub fn is_done(&self) -> bool {
        self.context.queues.is_done(&self.kind)
    }

    /// Returns once it is.
    ///
    /// # Errors
    /// What the context died of.
    pub fn synchronize(&self) -> Res {
        self.last().wait();
        self.context.check()
    }
}
