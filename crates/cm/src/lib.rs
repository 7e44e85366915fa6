//! The InfiniBand connection manager (IBA chapter 12): connections and datagram services agreed upon by management
//! datagrams between queue pairs 1.
//!
//! A state machine without I/O and clock: calls, received MADs and instants go in; MADs, events and a next deadline come
//! out. Where the specification leaves a choice it is Linux's (`drivers/infiniband/core/cm.c`). MADs that make no
//! sense are dropped; none can do more than that.
#![forbid(unsafe_code)]

mod conn;
mod event;
mod incoming;
mod machine;
mod pace;
mod params;

pub use event::{Event, Refused, Reply, Request, SidrReply, SidrRequest};
pub use machine::Cm;
pub use params::{Config, ConnId, ConnectParams, Invalid, Path, ReplyParams, SidrReplyParams};
pub use wire::cm::{
    Ece, REJ_PRIVATE_LEN, REP_PRIVATE_LEN, REQ_PRIVATE_LEN, Reason, SIDR_REP_PRIVATE_LEN,
    SIDR_REQ_PRIVATE_LEN, SidrStatus, Transport,
};
pub use wire::mad::MAD_LEN;
