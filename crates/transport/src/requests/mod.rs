//! Send requests on their way: what each has done, and what bounds all of them.
//!
//! `wqe` is one request, `gather` the memory that it names and `check` what it must keep to.
//! `requester` is the state of a queue pair's send side, with its `window` and its [`timing`].
//! Nothing here sends: the packets are made in `crate::requester`.

pub(crate) mod check;
pub(crate) mod gather;
pub(crate) mod ragged;
pub(crate) mod requester;
pub mod timing;
pub(crate) mod vendor;
pub(crate) mod window;
pub(crate) mod wqe;
