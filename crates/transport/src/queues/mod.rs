//! Queues of requests: in the engine's own memory, in a program's, and matching lists.

pub mod shared;
pub mod slots;
pub mod tags;
