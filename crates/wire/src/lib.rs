//! Every format that packets and management datagrams of RoCEv2 and InfiniBand are made of: checked
//! parsing and emission over plain bytes, each format in one file with the places of its fields.
//!
//! It promises no I/O, no allocation per packet and no unsafe code; parsers take hostile bytes and
//! answer with a value or an error, never a panic. Section numbers are those of the InfiniBand
//! Architecture Specification, Volume 1 (IBA).
//!
//! Start at [`Headers`], the transport headers of a packet, which are parsed and emitted whole.
//! [`icrc`] is the checksum behind them, [`ethernet`], [`ip`], [`udp`] and [`grh`] are what lies
//! before them, [`mad`] the datagrams of management, with those of connections in [`cm`].
#![forbid(unsafe_code)]

pub mod field;
pub mod mad;
mod network;
mod packet;

pub use mad::cm;
pub use network::{arp, ethernet, frame, internet, ip, ipv4, ipv6, ndp, tcp, udp};
pub use packet::{
    ACK_LEN, Aeth, AtomicEth, BTH_LEN, Bth, DETH_LEN, Deth, Feth, Headers, MAX_HEADERS_LEN,
    NakCode, Opcode, Operation, ParseError, Position, Psn, Reth, SHORT_PACKET, SHORT_PAYLOAD,
    Service, Short, ShortAck, ShortSend, Syndrome, grh, guard, icrc, mtu, peek, timer,
};

/// UDP destination port of RoCEv2 (IBA Annex A17).
pub const ROCE_PORT: u16 = 4791;
/// The default partition with full membership (IBA 10.9.1), the only one on RoCE.
pub const DEFAULT_PKEY: u16 = 0xffff;
/// The LID of whoever is at the end of a directed route, or of nobody (IBA 4.1.3).
pub const PERMISSIVE_LID: u16 = 0xffff;
/// Bits of a queue pair's index within its slot; the bits above them are the slot of the process
/// that has it.
pub const QPN_INDEX_BITS: u32 = 14;
/// Length of the invariant CRC that ends every packet, in bytes.
pub const ICRC_LEN: usize = 4;
/// Length of a global route header, in bytes: what precedes UD payload in a receive buffer.
pub const GRH_LEN: usize = 40;

/// Whether two P_Keys are of one partition, whatever the memberships in it (IBA 10.9.3).
pub const fn is_same_partition(one: u16, other: u16) -> bool {
    (one ^ other) & 0x7fff == 0
}
