//! Queue pairs, and the requests and rules that are posted to them.

pub(crate) mod async_events;
pub(crate) mod builder;
pub(crate) mod counters;
pub(crate) mod flow;
pub(crate) mod mw;
pub(crate) mod open;
pub(crate) mod post;
pub(crate) mod qp;
pub(crate) mod qp_ex;
pub(crate) mod tm;
