//! The system as the registry uses it: abstract names and who holds them, records with descriptors,
//! UDP sockets and their steering.
//!
//! Nothing here knows what a request means, and nothing blocks.

mod census;
mod linux;
pub(crate) mod names;
mod probe;
pub(crate) mod pulse;
pub(crate) mod record;
pub(crate) mod sys;
mod vault;

pub(crate) use linux::Linux;
