//! The transport in virtual time: two QPs, a network that misbehaves by a seed, and hand-made hostile packets.

mod indirect;
mod page_faults;
mod paging;
mod pauses;
mod placement;
mod raw;
mod rc_lossy;
mod requester_rules;
mod responder_rules;
mod sabotage;
mod signatures;
mod states;
mod support;
mod sweeps;
mod tags;
mod throughput;
mod timers;
mod turns;
mod uc_ud;
mod windows;
mod xrc;
