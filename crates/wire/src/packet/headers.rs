//! The transport headers of a packet as one value: BTH and the extension headers its opcode calls
//! for. `codec.rs` is how they look on the wire.

use super::opcode::Opcode;
use super::psn::Psn;

/// Longest run of transport headers that any opcode calls for, in bytes.
pub const MAX_HEADERS_LEN: usize = 12 + 8 + 28 + 4 + 4;

/// Base transport header (IBA 9.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bth {
    /// Operation.
    pub opcode: Opcode,
    /// Responder shall raise a solicited event.
    pub solicited: bool,
    /// Migration request state.
    pub migrated: bool,
    /// Bytes of padding after the payload, 0 to 3.
    pub pad: u8,
    /// Partition key.
    pub pkey: u16,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination queue pair number, 24 bits.
    pub dest_qp: u32,
    /// Requester asks for an acknowledge.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

/// RDMA extended transport header (IBA 9.3.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reth {
    /// Remote virtual address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole DMA in bytes, 0 to 2^31.
    pub len: u32,
}

/// FLUSH extended transport header (IBA A19.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Feth {
    /// Placement type, four bits: 1 = global visibility, 2 = persistence.
    pub placement: u8,
    /// Selectivity level, two bits: 0 = the range that the RETH names, 1 = all of its memory
    /// region.
    pub level: u8,
}

/// Atomic extended transport header (IBA 9.3.4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicEth {
    /// Remote virtual address, 8-byte aligned.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Value to swap in or to add.
    pub swap_or_add: u64,
    /// Value to compare with.
    pub compare: u64,
}

/// Reason of a negative acknowledge (IBA table 47).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NakCode {
    /// PSN sequence error.
    Sequence,
    /// Invalid request.
    InvalidRequest,
    /// Remote access error.
    RemoteAccess,
    /// Remote operational error.
    RemoteOperational,
    /// Invalid RD request.
    InvalidRd,
}

/// AETH syndrome (IBA 9.7.5.1.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// Acknowledge; the five-bit end-to-end credit code (31 = no credit information).
    Ack(u8),
    /// Receiver not ready; the five-bit timer code.
    RnrNak(u8),
    /// Negative acknowledge.
    Nak(NakCode),
}

/// Acknowledge extended transport header (IBA 9.3.5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// What is acknowledged or why not.
    pub syndrome: Syndrome,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

/// Datagram extended transport header (IBA 9.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deth {
    /// Queue key.
    pub qkey: u32,
    /// Source queue pair number, 24 bits.
    pub src_qp: u32,
}

/// All transport headers of one packet. Which options are `Some` is fixed by `bth.opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Headers {
    /// Base header.
    pub bth: Bth,
    /// Present on datagrams.
    pub deth: Option<Deth>,
    /// Shared receive queue number (XRCETH), present on XRC requests.
    pub xrc_srqn: Option<u32>,
    /// Present on FLUSH requests.
    pub feth: Option<Feth>,
    /// Present on the first packet of an RDMA WRITE and on READ, FLUSH and ATOMIC WRITE requests.
    pub reth: Option<Reth>,
    /// Present on atomic requests.
    pub atomic: Option<AtomicEth>,
    /// Present on acknowledges and on first, last and only READ responses.
    pub aeth: Option<Aeth>,
    /// Original value, present on atomic acknowledges.
    pub atomic_ack: Option<u64>,
    /// Immediate data, host order of the big-endian wire word.
    pub imm: Option<u32>,
    /// Key to invalidate.
    pub invalidate: Option<u32>,
}

impl Headers {
    /// Headers with every extension absent.
    pub const fn new(bth: Bth) -> Headers {
        Headers {
            bth,
            deth: None,
            xrc_srqn: None,
            feth: None,
            reth: None,
            atomic: None,
            aeth: None,
            atomic_ack: None,
            imm: None,
            invalidate: None,
        }
    }
}
