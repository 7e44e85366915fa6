//! Streams, what is queued in them beside copies, and events.

mod event;
mod memop;
mod stream;
