//! The connection manager of the process, wired to queue pair 1, to channels and to the registry.

pub(crate) mod addresses;
pub(crate) mod claims;
pub(crate) mod neighbour;
pub(crate) mod service;
pub(crate) mod token;
