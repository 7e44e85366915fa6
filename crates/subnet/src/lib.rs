//! The manager of an InfiniBand subnet ([`hca::Network::Subnet`]): subnet management (IBA 14) and subnet administration (IBA 15).
//!
//! Every port's device has the manager, with one LID for all, and answers its own port from what all ports publish; so nobody is
//! elected, and none is missed when it ends. To who asks, the ports are at one switch, whose port 0 is the manager's.
//! [`Administrator`] and [`smp`] make answers from a [`View`], without I/O or clock; [`serve`] is the thread that asks them.
#![forbid(unsafe_code)]

mod administrator;
mod bytes;
mod class_port_info;
mod groups;
mod mask;
mod nodes;
mod paths;
mod rmpp;
mod serve;
pub mod smp;
mod tables;
mod view;

pub use administrator::Administrator;
pub use serve::serve;
pub use view::{Groups, Refused, View};

/// A management datagram (IBA 13.4).
pub type Mad = [u8; 256];
