//! Events: a place in a stream, and when it was reached.

use super::lane::Lane;
use super::line::Point;
use crate::{Error, Handle, Res};
use engine_thread::lock;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

/// Where an event was recorded last.
#[derive(Clone)]
struct Recorded {
    point: Point,
    /// Set when the place is reached.
    at: Arc<OnceLock<Instant>>,
}

/// An event.
pub struct Event {
    context: Handle,
    flags: u32,
    recorded: Mutex<Option<Recorded>>,
}

/// `CU_EVENT_BLOCKING_SYNC`, `CU_EVENT_DISABLE_TIMING`, `CU_EVENT_INTERPROCESS`.
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
const KNOWN: u32 = 7;

impl Event {
    /// An event of a context that was never recorded.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for flags that are none; `CUDA_ERROR_NOT_SUPPORTED` for events of
    /// several processes.
    pub fn new(context: Handle, flags: u32) -> Res<Event> {
        if flags & !KNOWN != 0 || flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
            return Err(Error::INVALID_VALUE);
        }
        if flags & INTERPROCESS != 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        Ok(Event { context, flags, recorded: Mutex::default() })
    }

    /// The handle of its context.
    pub fn context(&self) -> Handle {
        self.context
    }

    fn recorded(&self) -> Option<Recorded> {
        lock(&self.recorded).clone()
    }

    /// Stands from now on for what a stream was given so far.
    pub fn record(&self, stream: &Lane) {
        let at = Arc::new(OnceLock::new());
        let reached = at.clone();
        let point = stream.queue(Box::new(move || {
            reached.get_or_init(Instant::now);
        }));
        *lock(&self.recorded) = Some(Recorded { point, at });
    }

    /// Lets what a stream is given from now on wait for it.
    pub fn hold_back(&self, stream: &Lane) {
        let Some(recorded) = self.recorded().filter(|recorded| !recorded.point.is_reached()) else {
            return;
        };
        if self.context == stream.context().handle() {
            stream.queue(Box::new(move || recorded.point.wait()));
            return;
        }
        // The end of the stream's context lets go of everything that may take for ever in it, and
        // of nothing in the event's.
        let context = stream.context().clone();
        stream.queue_fallible(move || {
            let is_reached = recorded.point.wait_unless(|| context.is_ended());
            if is_reached { Ok(()) } else { Err(Error::CONTEXT_IS_DESTROYED) }
        });
    }

    /// Whether what it stands for is done; so if it was never recorded.
    pub fn is_reached(&self) -> bool {
        self.recorded().is_none_or(|recorded| recorded.point.is_reached())
    }

    /// Returns once it is.
    pub fn wait(&self) {
        if let Some(recorded) = self.recorded() {
            recorded.point.wait();
        }
    }

    /// Milliseconds from another event to this one.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` where either was never recorded or does not take the time;
    /// `CUDA_ERROR_NOT_READY` where either is not reached.
    pub fn elapsed_ms(&self, since: &Event) -> Res<f32> {
        if (self.flags | since.flags) & DISABLE_TIMING != 0 {
            return Err(Error::INVALID_HANDLE);
        }
        let at = |event: &Event| {
            let recorded = event.recorded().ok_or(Error::INVALID_HANDLE)?;
            recorded.at.get().copied().ok_or(Error::NOT_READY)
        };
        let (end, start) = (at(self)?, at(since)?);
        let ms = match end.checked_duration_since(start) {
            Some(later) => later.as_secs_f64() * 1e3,
            None => -(start.duration_since(end).as_secs_f64() * 1e3),
        };
        Ok(ms as f32)
    }
}
