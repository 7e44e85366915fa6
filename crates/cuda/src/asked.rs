//! The stream that a call names: one that was made, or a default one.

use crate::queue::{Kind, Lane, Stream};
use crate::{Driver, Error, Handle, Res, current, living};
use std::ops::Deref;
use std::sync::Arc;

/// `CU_STREAM_LEGACY`, `CU_STREAM_PER_THREAD`.
const LEGACY: Handle = 1;
const PER_THREAD: Handle = 2;

/// A stream that a call names.
#[derive(Clone)]
pub struct Asked {
    lane: Lane,
    made: Option<Arc<Stream>>,
}

impl Deref for Asked {
    type Target = Lane;

    fn deref(&self) -> &Lane {
        &self.lane
    }
}

/// Makes a stream of the current context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT`, `CUDA_ERROR_INVALID_VALUE` for flags that are none.
pub fn new_stream(flags: u32, priority: i32) -> Res<Arc<Stream>> {
    if flags & !Stream::NON_BLOCKING != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let context = living()?;
    let (driver, own) = (Driver::get()?, context.clone());
    let stream = driver.streams.add(|handle| Stream::new(handle, own, flags, priority))?.1;
    driver.made_in(&context)?;
    Ok(stream)
}

impl Asked {
    /// The stream of a handle. 0 is the legacy default stream, or for functions of the `_ptsz` kind
    /// the calling thread's.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`; `CUDA_ERROR_INVALID_CONTEXT` for a default stream where no
    /// context is current.
    pub fn of(handle: Handle, per_thread: bool) -> Res<Asked> {
        let kind = match (handle, per_thread) {
            (0, true) | (PER_THREAD, _) => Kind::PerThread,
            (0, false) | (LEGACY, _) => Kind::Legacy,
            _ => {
                let made = Driver::get()?.streams.get(handle)?;
                return Ok(Asked { lane: made.lane().clone(), made: Some(made) });
            }
        };
        Ok(Asked { lane: Lane::new(current()?, kind), made: None })
    }

    /// Its handle; that of a default stream is 0 or `CU_STREAM_PER_THREAD`.
    pub fn handle(&self) -> Handle {
        match (&self.made, self.kind()) {
            (Some(stream), _) => stream.handle(),
            (None, Kind::PerThread) => PER_THREAD,
            (None, _) => 0,
        }
    }

    /// `CU_STREAM_*`.
    pub fn flags(&self) -> u32 {
        self.made.as_ref().map_or(0, |stream| stream.flags())
    }

    /// Its priority.
    pub fn priority(&self) -> i32 {
        self.made.as_ref().map_or(0, |stream| stream.priority())
    }

    /// A number of its own in this process.
    pub fn id(&self) -> u64 {
        match (&self.made, self.kind()) {
            (Some(stream), _) => stream.id(),
            (None, Kind::PerThread) => PER_THREAD,
            (None, _) => LEGACY,
        }
    }
}
