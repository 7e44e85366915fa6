//! The manager of an InfiniBand subnet ([`hca::Network::Subnet`]): subnet management (IBA 14) and
//! subnet administration (IBA 15).
//!
//! Every port's device has the manager, with one LID for all, and answers its own port from what
//! all ports publish; so nobody is elected, and none is missed when it ends. To whoever asks, the
//! ports are at one switch, whose port 0 is the manager's. It promises that any bytes are answered
//! or dropped, never more, and that what a port can make it remember is bounded.
//!
//! Start at [`serve`], the thread that manages the subnet of a device. What it says is made by
//! [`Administrator`] and [`smp`] from a [`View`] of the ports, without I/O or clock.
#![forbid(unsafe_code)]

mod administrator;
mod groups;
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
pub type Mad = [u8; wire::mad::MAD_LEN];
