//! Management datagrams (IBA 13.4), a class of them in each file: their header, the multi-packet
//! protocol, subnet management, subnet administration and communication management.

pub mod cm;
mod header;
pub mod port_info;
pub mod rmpp;
pub mod sa;
pub mod smp;

pub use header::{BASE_VERSION, HEADER_LEN, Header, MAD_LEN, class, field, method, status};
