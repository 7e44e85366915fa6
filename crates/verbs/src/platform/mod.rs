//! The machine that the devices sit in, and the registry that the process is a member of.

pub(crate) mod device;
pub(crate) mod membership;
pub(crate) mod place;
