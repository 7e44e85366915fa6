//! What the owner of a queue pair calls, besides posting and transmitting requests: changes of
//! state, arrivals, short messages, the passing of time, the end of a page fault and the end of the
//! device.
//!
//! Each call hands on to the [requester](crate::requester) and the [responder](crate::responder).

mod end;
mod lone;
mod modify;
mod receive;
mod resume;
mod short;
mod time;

pub(crate) use lone::Lone;
pub use lone::{ShortPayload, ShortWr};
