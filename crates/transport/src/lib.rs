//! The transport: requester and responder of one QP, without I/O and without a clock (D2).
//!
//! Packets, work requests and instants go in; packets, completions, events and a next deadline come
//! out. A [`Transport`] belongs to its QP's lock; everything it needs for one call comes in a
//! [`Cx`]. This crate knows no device, no socket and no clock, as its dependencies show: the wire's
//! formats, and registrations.
//!
//! - [`values`] are what crosses the boundary: work requests, completions, attributes.
//!   [`signature`] are the rules of block signatures.
//! - [`keys`] is the table of memory keys, where every check of a key is.
//! - [`queues`] are where requests wait, in the engine's memory or a program's, and matching lists.
//! - [`executor`] holds the checks and effects of incoming operations and knows no packets (D3);
//!   [`requests`] are outgoing ones, each with how far it has come.
//! - [`qp`] is the queue pair's state. Above it are its two sides, `requester` and `responder`, and
//!   the `calls` of its owner.
//!
//! Each uses only those before it.
#![forbid(unsafe_code)]

mod calls;
mod counters;
mod error;
pub mod executor;
pub mod keys;
pub mod qp;
pub mod queues;
mod requester;
pub mod requests;
mod responder;
pub mod sabotage;
mod shelf;
pub mod signature;
pub mod values;

pub use calls::{ShortPayload, ShortWr};
pub use counters::{Both, Count, Counter, CounterSet};
pub use error::{Error, Result};
pub use qp::{
    Budget, Cx, Direct, FaultSide, FaultedWork, Fill, Half, InPlace, Init, Missing, PageFault,
    ReadInPlace, Routing, Rx, Share, Sink, To, Transport, Tx, Verdict,
};
pub use queues::shared::{
    OwnCompletions, SharedQueue, SharedReceive, TagReceive, XrcQueues, XrcReceive,
};
pub use requester::direct::{SHORT_DIRECT, WATCHED};
pub use shelf::{Lent, Shelf, list_of, queue_of};
pub use values::{CustomWork, Worked};
