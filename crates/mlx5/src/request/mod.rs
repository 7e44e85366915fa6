//! Commands, decoded once: what the driver's bytes say, as values with names and types.
//!
//! [`command::Request::parse`] is the only place that reads a command's bytes. Requests have the
//! names of the manual (`create_cq_in` is [`cq::CreateCq`]), and so have their parts. Handlers take
//! them, and check what they say.

pub(crate) mod command;
pub(crate) mod cq;
pub(crate) mod event;
pub(crate) mod function;
pub(crate) mod memory;
pub(crate) mod nic;
pub(crate) mod part;
pub(crate) mod port;
pub(crate) mod qp;
pub(crate) mod queue;
pub(crate) mod srq;
pub(crate) mod steering;
pub(crate) mod user;
pub(crate) mod vport;
