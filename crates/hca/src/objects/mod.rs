//! What programs make on a device besides memory: domains, queues and queue pairs, and the events
//! that tell of them.

pub(crate) mod ah;
pub(crate) mod cq;
pub(crate) mod door;
pub(crate) mod owner;
pub(crate) mod qp;
pub(crate) mod qp_table;
pub(crate) mod rss;
pub(crate) mod srq;
pub(crate) mod wq;
pub(crate) mod xrc;
