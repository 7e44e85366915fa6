//! The objects that commands make, and what they share.

pub(crate) mod cq;
pub(crate) mod eq;
pub(crate) mod names;
pub(crate) mod objects;
pub(crate) mod page_fault;
pub(crate) mod pools;
pub(crate) mod port;
pub(crate) mod qp;
pub(crate) mod queue_memory;
pub(crate) mod shared;
pub(crate) mod srq;
pub(crate) mod tag_names;
pub(crate) mod uar;
