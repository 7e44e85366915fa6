//! Send work requests.

use super::address::AhAttr;
use super::domain::PdId;
use super::key::KeyConfig;
use crate::shelf::Lent;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Longest message (IBA 9.4.1): 2^31 bytes.
pub const MAX_MESSAGE: u32 = 1 << 31;

bitflags::bitflags! {
    /// Send flags (`enum ibv_send_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct SendFlags: u32 {
        /// Wait for earlier reads and atomics.
        const FENCE = 1;
        /// Raise a completion.
        const SIGNALED = 1 << 1;
        /// Solicited event at the receiver.
        const SOLICITED = 1 << 2;
        /// Payload is in the request itself.
        const INLINE = 1 << 3;
        /// Checksum offload: only for raw packet and IPoIB.
        const IP_CSUM = 1 << 4;
    }
}

/// One scatter/gather entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sge {
    /// Address under `lkey`.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key.
    pub lkey: u32,
}

/// Scatter/gather list; the usual few entries live in place.
pub type SgList = Lent<[Sge; 2]>;

/// Bytes that a send request brings along; the usual few live in place.
pub type InlineData = Lent<[u8; 32]>;

/// Where a one-sided operation goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remote {
    /// Remote virtual address.
    pub addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// What a send request does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SendOp {
    /// SEND.
    Send,
    /// SEND with immediate data (host order of the big-endian wire word).
    SendImm(u32),
    /// SEND that invalidates a key at the far end.
    SendInvalidate(u32),
    /// RDMA WRITE.
    Write(Remote),
    /// RDMA WRITE with immediate data.
    WriteImm(Remote, u32),
    /// RDMA READ.
    Read(Remote),
    /// Compare and swap.
    CompareSwap {
        /// Target.
        remote: Remote,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Fetch and add.
    FetchAdd {
        /// Target.
        remote: Remote,
        /// Addend.
        add: u64,
    },
    /// Invalidate a local key.
    LocalInvalidate(u32),
    /// Something that only the front end knows: its `CustomWork` does it once everything before is
    /// complete.
    Custom(u64),
    /// Bind a memory window.
    BindMw(Bind),
    /// Lay out an indirect key.
    ConfigureKey(Arc<KeyConfig>),
    /// Write 8 aligned bytes at once, after everything before.
    AtomicWrite(Remote),
    /// Bring what was written before to global visibility or persistence.
    Flush(Flush),
}

impl SendOp {
    /// The immediate data of a SEND that does nothing else, if it has any; `None` for any other
    /// operation.
    pub fn plain_send(&self) -> Option<Option<u32>> {
        match self {
            SendOp::Send => Some(None),
            SendOp::SendImm(imm) => Some(Some(*imm)),
            _ => None,
        }
    }
}

/// What a FLUSH is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// Where the range begins; any address in the region for a whole one.
    pub remote: Remote,
    /// Length of the range in bytes.
    pub len: u32,
    /// Placement (`enum ibv_placement_type`): 1 = global visibility, 2 = persistence, or both.
    pub placement: u8,
    /// The whole region instead of the range.
    pub whole: bool,
}

/// Type of a memory window (`enum ibv_mw_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum MwType {
    /// Open to every QP of its domain.
    One = 1,
    /// Open to the peer of the QP that binds it.
    Two = 2,
}

/// What a memory window becomes a key for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bind {
    /// Any key the window ever had.
    pub window: u32,
    /// The new key, of which the low 8 bits count.
    pub key: u32,
    /// Local key of the registration.
    pub region: u32,
    /// Address of the first byte, as the registration counts.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a window of type 1.
    pub len: u64,
    /// Rights (`enum ibv_access_flags`).
    pub access: u32,
}

/// Payload of a send request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// The bytes lie in registered memory.
    Gather(SgList),
    /// The bytes were copied when the request was posted.
    Inline(InlineData),
}

/// An address handle: where datagrams go, as whoever sends them on knows it.
pub trait Destination: Any + Debug + Send + Sync {
    /// The attributes it was made from.
    fn attr(&self) -> &AhAttr;
    /// Its protection domain, if it has one.
    fn pd_id(&self) -> Option<PdId>;
}

/// Destination of a datagram.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Address handle.
    pub ah: Arc<dyn Destination>,
    /// Destination QP number.
    pub remote_qpn: u32,
    /// Queue key; bit 31 set means the QP's own.
    pub remote_qkey: u32,
}

/// A send work request.
#[derive(Clone, Debug)]
pub struct SendWr {
    /// The program's identifier.
    pub wr_id: u64,
    /// Operation.
    pub op: SendOp,
    /// Payload, or where a READ or atomic result goes.
    pub payload: Payload,
    /// Flags.
    pub flags: SendFlags,
    /// Destination on UD.
    pub datagram: Option<Datagram>,
    /// The peer's shared receive queue on XRC.
    pub xrc_srqn: u32,
}

/// Sum of the lengths of a list, in bytes.
pub(crate) fn total_length(list: &[Sge]) -> u64 {
    list.iter().map(|sge| u64::from(sge.length)).sum()
}
