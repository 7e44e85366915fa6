//! The requester: turns send requests into packets, and the peer's answers into completions.
//!
//! [`send`] is the way of a request from the program to the wire; [`unreliable`] is its last part
//! for the services that hear nothing back, and [`direct`] is the one to a neighbour. [`completer`]
//! takes the answers, and [`finish`] ends a request. [`faults`] waits for memory that is not there.

mod completer;
pub(crate) mod direct;
mod faults;
mod finish;
mod send;
mod unreliable;
