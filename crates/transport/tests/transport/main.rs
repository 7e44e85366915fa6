//! The transport in virtual time: two QPs, a network that misbehaves by a seed, and hand-made
//! hostile packets.

mod congestion;
mod faults;
mod keys;
mod lossy;
mod requester;
mod responder;
mod sabotage;
mod services;
mod short;
mod states;
mod support;
mod throughput;
mod turns;
