//! Verbs objects but for regions and queue pairs, a file for each kind.

pub(crate) mod ah;
pub(crate) mod allocator;
pub(crate) mod channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cq_ex;
pub(crate) mod facts;
pub(crate) mod lists;
pub(crate) mod pd;
pub(crate) mod query;
pub(crate) mod srq;
pub(crate) mod wq;
pub(crate) mod xrc;
