//! Formats of the Programmer's Reference Manual, each laid out once. No file here keeps state.

pub(crate) mod bits;
pub(crate) mod bsf;
pub(crate) mod context;
pub(crate) mod cqe;
pub(crate) mod head;
pub(crate) mod identity;
pub(crate) mod limits;
pub(crate) mod mkc;
pub(crate) mod moderation;
pub(crate) mod request;
pub(crate) mod stride;
pub(crate) mod tag_cqe;
pub(crate) mod wqe;
