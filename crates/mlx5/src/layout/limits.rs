//! Bounds that a capability states and the code that keeps objects observes.

/// Entries of a completion queue at most, as a logarithm.
pub(crate) const LOG_MAX_CQ_SIZE: u64 = 22;
/// Entries of an event queue at most, as a logarithm.
pub(crate) const LOG_MAX_EQ_SIZE: u64 = 22;
/// Event queues at most.
pub(crate) const MAX_EQS: u8 = 64;
/// Our number among the devices of the machine (`vhca_id`).
pub(crate) const OWN_DEVICE: u64 = 0;
/// Queue pair numbers that one general object sets aside, as a logarithm.
pub(crate) const LOG_QP_NUMBERS: u64 = 6;
