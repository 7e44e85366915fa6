//! A packet from its transport headers to its ICRC, and what a receiver keeps of the IP header
//! before them: every part of RoCEv2 that InfiniBand's specification defines.

mod codec;
mod crc_field;
pub mod grh;
pub mod guard;
mod headers;
pub mod icrc;
pub mod mtu;
mod opcode;
mod psn;
mod short;
pub mod timer;

pub use codec::{BTH_LEN, DETH_LEN, ParseError, peek};
pub use headers::{
    Aeth, AtomicEth, Bth, Deth, Feth, Headers, MAX_HEADERS_LEN, NakCode, Reth, Syndrome,
};
pub use opcode::{Opcode, Operation, Position, Service};
pub use psn::Psn;
pub use short::{ACK_LEN, SHORT_PACKET, SHORT_PAYLOAD, Short, ShortAck, ShortSend};
