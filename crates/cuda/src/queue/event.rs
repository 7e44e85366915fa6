//! Events: a place in a stream, and when it was reached.

use super::event_handle::EventHandle;
use super::lane::Lane;
use super::line::Point;
use super::shared::Shared;
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

/// What an event is recorded in.
enum Records {
    Own(Mutex<Option<Recorded>>),
    /// For other processes too.
    Shared(Arc<Shared>),
}

/// An event.
pub struct Event {
    context: Handle,
    flags: u32,
    records: Records,
}

/// `CU_EVENT_BLOCKING_SYNC`, `CU_EVENT_DISABLE_TIMING`, `CU_EVENT_INTERPROCESS`.
const DISABLE_TIMING: u32 = 2;
const INTERPROCESS: u32 = 4;
const KNOWN: u32 = 7;

impl Event {
    /// An event of a context that was never recorded.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for flags that are none; `CUDA_ERROR_OUT_OF_MEMORY` where one of
    /// several processes finds no memory or no descriptor.
    pub fn new(context: Handle, flags: u32) -> Res<Event> {
        if flags & !KNOWN != 0 || flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let records = match flags & INTERPROCESS {
            0 => Records::Own(Mutex::default()),
            _ => Records::Shared(Arc::new(Shared::create()?)),
        };
        Ok(Event { context, flags, records })
    }

    /// An event of another process, for a context.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_CONTEXT` for one of this process; `CUDA_ERROR_INVALID_HANDLE` where it
    /// is gone.
    pub fn open(context: Handle, handle: &EventHandle) -> Res<Event> {
        let records = Records::Shared(Arc::new(handle.open()?));
        Ok(Event { context, flags: DISABLE_TIMING | INTERPROCESS, records })
    }

    /// What other processes find it by.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE` for an event of this process alone, or of another.
    pub fn export(&self) -> Res<EventHandle> {
        match &self.records {
            Records::Shared(shared) => EventHandle::of(shared),
            Records::Own(_) => Err(Error::INVALID_HANDLE),
        }
    }

    /// The handle of its context.
    pub fn context(&self) -> Handle {
        self.context
    }

    /// Stands from now on for what a stream was given so far.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where too many records of an event of several processes are not
    /// reached.
    pub fn record(&self, stream: &Lane) -> Res {
        match &self.records {
            Records::Own(recorded) => {
                let at = Arc::new(OnceLock::new());
                let reached = at.clone();
                let point = stream.queue(Box::new(move || {
                    reached.get_or_init(Instant::now);
                }));
                *lock(recorded) = Some(Recorded { point, at });
            }
            Records::Shared(shared) => {
                let (record, context) = (shared.take()?, stream.context().clone());
                let settles = shared.clone();
                // What a context that ends leaves undone, it has died of.
                stream.queue(Box::new(move || settles.settle(record, context.check().is_ok())));
                shared.publish(record);
            }
        }
        Ok(())
    }

    /// Lets what a stream is given from now on wait for it.
    pub fn hold_back(&self, stream: &Lane) {
        match &self.records {
            Records::Own(recorded) => {
                let recorded = lock(recorded).clone();
                if let Some(recorded) = recorded.filter(|recorded| !recorded.point.is_reached()) {
                    self.hold_back_until(stream, recorded.point);
                }
            }
            Records::Shared(shared) => {
                if let Some(record) = shared.latest() {
                    let shared = shared.clone();
                    wait_within(stream, move |ended| shared.wait_unless(record, ended));
                }
            }
        }
    }

    fn hold_back_until(&self, stream: &Lane, point: Point) {
        if self.context == stream.context().handle() {
            stream.queue(Box::new(move || point.wait()));
        } else {
            wait_within(stream, move |ended| Ok(point.wait_unless(ended)));
        }
    }

    /// Whether what it stands for is done; so if it was never recorded.
    ///
    /// # Errors
    /// `CUDA_ERROR_LAUNCH_FAILED` where it never will be done, of an event of several processes: it
    /// failed, or its process ended before.
    pub fn is_reached(&self) -> Res<bool> {
        match &self.records {
            Records::Own(recorded) => {
                Ok(lock(recorded).as_ref().is_none_or(|recorded| recorded.point.is_reached()))
            }
            Records::Shared(shared) => {
                shared.latest().map_or(Ok(true), |record| shared.is_reached(record))
            }
        }
    }

    /// Returns once it is.
    ///
    /// # Errors
    /// As [`Event::is_reached`].
    pub fn wait(&self) -> Res {
        match &self.records {
            Records::Own(recorded) => {
                let recorded = lock(recorded).clone();
                recorded.inspect(|recorded| recorded.point.wait());
                Ok(())
            }
            Records::Shared(shared) => match shared.latest() {
                Some(record) => shared.wait_unless(record, || false).map(drop),
                None => Ok(()),
            },
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
            let Records::Own(recorded) = &event.records else { return Err(Error::INVALID_HANDLE) };
            let recorded = lock(recorded).clone().ok_or(Error::INVALID_HANDLE)?;
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

/// Lets what a stream is given from now on wait for work of another context or process: the end of
/// the stream's context, or its death, lets go of it, for it may take for ever, and nothing behind
/// it is done.
fn wait_within(stream: &Lane, wait: impl FnOnce(&dyn Fn() -> bool) -> Res<bool> + Send + 'static) {
    let context = stream.context().clone();
    stream.queue_fallible(move || {
        let is_reached = wait(&|| context.goes_on().is_err())?;
        if is_reached { Ok(()) } else { context.goes_on() }
    });
}
