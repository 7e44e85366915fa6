//! RoCEv2 and InfiniBand packet formats, and the management datagrams of connections: checked parsing and emission over plain bytes.
//!
//! This room does no I/O, allocates nothing per packet and contains no unsafe code. Parsers take
//! hostile bytes and answer with a value or an error, never a panic. Section numbers are those of
//! the InfiniBand Architecture Specification, Volume 1 (IBA).
#![forbid(unsafe_code)]

pub mod cm;
mod codec;
mod crc_field;
pub mod frame;
pub mod grh;
pub mod guard;
mod headers;
pub mod icrc;
pub mod internet;
pub mod mad;
pub mod mtu;
mod opcode;
mod psn;
pub mod timer;

pub use codec::{BTH_LEN, ParseError};
pub use headers::{
    Aeth, AtomicEth, Bth, Deth, Feth, Headers, MAX_HEADERS_LEN, NakCode, Reth, Syndrome,
};
pub use opcode::{CNP_OPCODE, Opcode, Operation, Position, Service};
pub use psn::Psn;

/// UDP destination port of RoCEv2 (IBA Annex A17).
pub const ROCE_PORT: u16 = 4791;
/// Length of the invariant CRC that ends every packet, in bytes.
pub const ICRC_LEN: usize = 4;
/// Length of a global route header, in bytes: what precedes UD payload in a receive buffer.
pub const GRH_LEN: usize = 40;
