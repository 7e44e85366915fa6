//! The InfiniBand connection manager (IBA chapter 12): connections and datagram services agreed
//! upon by management datagrams between queue pairs 1.
//!
//! It is a state machine without I/O and clock: calls, received MADs and instants go in; MADs,
//! events and a next deadline come out. It promises that a MAD which makes no sense is dropped and
//! can do no more than that, that what a stranger can make it remember or repeat is bounded, and
//! that it does as Linux does (`drivers/infiniband/core/cm.c`) where the specification leaves a
//! choice.
//!
//! Start at [`Cm`]: [`Cm::connect`] begins a conversation, [`Cm::receive`] takes what arrives, and
//! [`Cm::poll_transmit`] and [`Cm::poll_event`] give what follows from either.
#![forbid(unsafe_code)]

mod conn;
mod event;
mod incoming;
mod machine;
mod pace;
mod params;

pub use event::{Event, Refused, Reply, Request, SidrReply, SidrRequest};
pub use machine::Cm;
pub use params::{
    Adapter, Config, ConnId, ConnectParams, Invalid, Path, ReplyParams, SidrReplyParams,
};
pub use wire::DEFAULT_PKEY;
pub use wire::cm::{
    Ece, REJ_PRIVATE_LEN, REP_PRIVATE_LEN, REQ_PRIVATE_LEN, Reason, SIDR_REP_PRIVATE_LEN,
    SIDR_REQ_PRIVATE_LEN, SidrStatus, Transport,
};
pub use wire::mad::MAD_LEN;
