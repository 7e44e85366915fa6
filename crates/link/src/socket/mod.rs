//! Datagram sockets as the link uses them: trains in and out, control messages, addresses in the
//! kernel's form, their ports, and what waits in them.
//!
//! Nothing here knows what a datagram carries.

pub(crate) mod backlog;
pub(crate) mod buffer;
pub(crate) mod cmsg;
pub(crate) mod name;
pub(crate) mod ports;
pub(crate) mod udp;
