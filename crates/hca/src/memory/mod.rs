//! Protection domains, and the memory regions, windows and keys in them.

pub(crate) mod advice;
pub(crate) mod data_direct;
pub(crate) mod indirect;
pub(crate) mod key_space;
pub(crate) mod mr;
pub(crate) mod mw;
pub(crate) mod pd;
