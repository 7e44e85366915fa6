//! Ethernet frames that are no packets of the transport: what carries them, which rules they meet
//! and who takes them.

pub(crate) mod flow_counters;
pub(crate) mod raw;
pub mod steering;
