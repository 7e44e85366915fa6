//! Memory regions of every kind.

pub(crate) mod advise;
pub(crate) mod buf;
pub(crate) mod dm;
pub(crate) mod import;
pub(crate) mod mr;
pub(crate) mod mr_fd;
pub(crate) mod null_mr;
pub(crate) mod rereg;
