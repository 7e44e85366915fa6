//! One registration, and the accesses through it.

pub(crate) mod access;
pub(crate) mod backing;
mod copies;
pub(crate) mod umem;
