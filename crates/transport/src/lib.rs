//! The transport: requester and responder of one QP, without I/O and without a clock (D2).
//!
//! Packets, work requests and instants go in; packets, completions, events and a next deadline come out.
//! A [`Transport`] belongs to its QP's lock; everything it needs for one call comes in a [`Cx`]. This crate knows no device, no socket
//! and no clock, as its dependencies show: the wire's formats below it, and registrations.
//!
//! - [`values`] are what crosses the boundary: work requests, completions, attributes. [`signature`] are the rules of block signatures.
//! - [`keys`] is the table of memory keys, where every check of a key is.
//! - [`queues`] are where requests wait, in the engine's memory or a program's, and matching lists.
//! - [`qp`] is the queue pair: its state machine, the requester's side, the responder's, and the [`qp::executor`], which holds the checks
//!   and effects of incoming operations and knows no packets (D3).
#![forbid(unsafe_code)]

mod counters;
mod cx;
mod error;
pub mod keys;
pub mod qp;
pub mod queues;
pub mod sabotage;
mod shelf;
pub mod signature;
pub mod values;

pub use counters::{Both, Count, Counter, CounterSet};
pub use cx::{
    CustomWork, Cx, Fill, OwnCompletions, Routing, Rx, SharedReceive, Sink, TagReceive, To, Tx,
    Worked, XrcQueues, XrcReceive,
};
pub use error::{Error, Result};
pub use qp::{
    Budget, FaultSide, FaultedWork, Init, Missing, PageFault, Share, SharedQueue, Transport,
    Verdict,
};
pub use shelf::{Lent, Shelf, list_of, queue_of};
