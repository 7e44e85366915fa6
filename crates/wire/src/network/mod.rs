//! What lies before the transport headers of a packet, and what else an Ethernet carries that this
//! project reads or makes: one format a file, each with the places of its fields, its header as a
//! value, and the way from bytes to it and back.

pub mod arp;
pub mod ethernet;
pub mod frame;
pub mod internet;
pub mod ip;
pub mod ipv4;
pub mod ipv6;
pub mod ndp;
pub mod tcp;
pub mod udp;
