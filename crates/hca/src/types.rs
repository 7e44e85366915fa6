//! Values that cross the boundary of the HCA: work requests, completions, attributes.
//!
//! Bit flags and enumerations carry the numeric values of the verbs API, so that a front end converts them by value.

use crate::device::AddressHandle;
use crate::indirect::KeyConfig;
use crate::shelf::Lent;
use crate::tm::TmInfo;
use std::net::IpAddr;
use std::sync::Arc;
use wire::frame::Mac;

/// Access rights of a key or a QP (`enum ibv_access_flags`): those of a registration.
pub use umem::AccessFlags as Access;

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

    /// Attribute mask of modify QP (`enum ibv_qp_attr_mask`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct AttrMask: u32 {
        /// `qp_state`.
        const STATE = 1;
        /// `cur_qp_state`.
        const CUR_STATE = 1 << 1;
        /// `en_sqd_async_notify`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `qp_access_flags`.
        const ACCESS_FLAGS = 1 << 3;
        /// `pkey_index`.
        const PKEY_INDEX = 1 << 4;
        /// `port_num`.
        const PORT = 1 << 5;
        /// `qkey`.
        const QKEY = 1 << 6;
        /// `ah_attr`.
        const AV = 1 << 7;
        /// `path_mtu`.
        const PATH_MTU = 1 << 8;
        /// `timeout`.
        const TIMEOUT = 1 << 9;
        /// `retry_cnt`.
        const RETRY_CNT = 1 << 10;
        /// `rnr_retry`.
        const RNR_RETRY = 1 << 11;
        /// `rq_psn`.
        const RQ_PSN = 1 << 12;
        /// `max_rd_atomic`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `alt_ah_attr` and its port, index and timeout.
        const ALT_PATH = 1 << 14;
        /// `min_rnr_timer`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `sq_psn`.
        const SQ_PSN = 1 << 16;
        /// `max_dest_rd_atomic`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `path_mig_state`.
        const PATH_MIG_STATE = 1 << 18;
        /// `cap`.
        const CAP = 1 << 19;
        /// `dest_qp_num`.
        const DEST_QPN = 1 << 20;
        /// `rate_limit`.
        const RATE_LIMIT = 1 << 25;
    }

    /// Completion flags (`enum ibv_wc_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the buffer hold a GRH.
        const GRH = 1;
        /// Immediate data is valid.
        const WITH_IMM = 1 << 1;
        /// Checksums verified.
        const IP_CSUM_OK = 1 << 2;
        /// `imm_data` holds an invalidated key.
        const WITH_INV = 1 << 3;
        /// Tag matching: the program shall say how many unexpected messages it has handled.
        const TM_SYNC_REQ = 1 << 4;
        /// Tag matching: a message met a tagged buffer.
        const TM_MATCH = 1 << 5;
        /// Tag matching: the message is in the tagged buffer.
        const TM_DATA_VALID = 1 << 6;
    }
}

/// QP transport type (`enum ibv_qp_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum QpType {
    /// Reliable connection.
    Rc = 2,
    /// Unreliable connection.
    Uc = 3,
    /// Unreliable datagram.
    Ud = 4,
    /// Whole Ethernet frames.
    RawPacket = 8,
    /// The sending half of an extended reliable connection.
    XrcSend = 9,
    /// Its receiving half.
    XrcRecv = 10,
}

impl QpType {
    /// Whether a QP has one peer.
    pub fn is_connected(self) -> bool {
        !matches!(self, QpType::Ud | QpType::RawPacket)
    }

    /// Whether its requests are acknowledged.
    pub fn is_reliable(self) -> bool {
        matches!(self, QpType::Rc | QpType::XrcSend | QpType::XrcRecv)
    }
}

/// QP state (`enum ibv_qp_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum QpState {
    /// Reset.
    Reset = 0,
    /// Initialised.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained.
    Sqd = 4,
    /// Send queue error.
    Sqe = 5,
    /// Error.
    Err = 6,
}

/// Queue sizes of a QP (`struct ibv_qp_cap`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QpCap {
    /// Outstanding send requests.
    pub max_send_wr: u32,
    /// Outstanding receive requests.
    pub max_recv_wr: u32,
    /// Scatter/gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive request.
    pub max_recv_sge: u32,
    /// Inline bytes of a send request.
    pub max_inline_data: u32,
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
    /// Something that only the front end knows: its `CustomWork` does it once everything before is complete.
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
    /// In registered memory.
    Gather(SgList),
    /// Copied at posting time.
    Inline(InlineData),
}

/// Destination of a datagram.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Address handle.
    pub ah: Arc<AddressHandle>,
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

/// A receive work request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecvWr {
    /// The program's identifier.
    pub wr_id: u64,
    /// Where the message goes.
    pub scatter: SgList,
}

/// Completion status (`enum ibv_wc_status`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are those of the verbs manual page ibv_poll_cq(3)")]
pub enum WcStatus {
    Success = 0,
    LocLenErr = 1,
    LocQpOpErr = 2,
    LocEecOpErr = 3,
    LocProtErr = 4,
    WrFlushErr = 5,
    MwBindErr = 6,
    BadRespErr = 7,
    LocAccessErr = 8,
    RemInvReqErr = 9,
    RemAccessErr = 10,
    RemOpErr = 11,
    RetryExcErr = 12,
    RnrRetryExcErr = 13,
    LocRddViolErr = 14,
    RemInvRdReqErr = 15,
    RemAbortErr = 16,
    FatalErr = 19,
    RespTimeoutErr = 20,
    GeneralErr = 21,
    TmErr = 22,
    TmRndvIncomplete = 23,
}

impl WcStatus {
    /// The status with this number.
    pub fn from_bits(bits: u32) -> Option<WcStatus> {
        use WcStatus::*;
        let all = [
            Success,
            LocLenErr,
            LocQpOpErr,
            LocEecOpErr,
            LocProtErr,
            WrFlushErr,
            MwBindErr,
            BadRespErr,
            LocAccessErr,
            RemInvReqErr,
            RemAccessErr,
            RemOpErr,
            RetryExcErr,
            RnrRetryExcErr,
            LocRddViolErr,
            RemInvRdReqErr,
            RemAbortErr,
            FatalErr,
            RespTimeoutErr,
            GeneralErr,
            TmErr,
            TmRndvIncomplete,
        ];
        all.into_iter().find(|&status| status as u32 == bits)
    }
}

/// What completed (`enum ibv_wc_opcode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(missing_docs, reason = "the names are those of the verbs manual page ibv_poll_cq(3)")]
pub enum WcOpcode {
    Send = 0,
    RdmaWrite = 1,
    RdmaRead = 2,
    CompSwap = 3,
    FetchAdd = 4,
    BindMw = 5,
    LocalInv = 6,
    Flush = 8,
    AtomicWrite = 9,
    Recv = 128,
    RecvRdmaWithImm = 129,
    TmAdd = 130,
    TmDel = 131,
    TmSync = 132,
    TmRecv = 133,
    TmNoTag = 134,
    /// `MLX5DV_WC_UMR`.
    ConfigureKey = 135,
}

impl WcOpcode {
    /// The opcode with this number.
    pub fn from_bits(bits: u32) -> Option<WcOpcode> {
        use WcOpcode::*;
        let all = [
            Send,
            RdmaWrite,
            RdmaRead,
            CompSwap,
            FetchAdd,
            BindMw,
            LocalInv,
            Flush,
            AtomicWrite,
            Recv,
            RecvRdmaWithImm,
            TmAdd,
            TmDel,
            TmSync,
            TmRecv,
            TmNoTag,
            ConfigureKey,
        ];
        all.into_iter().find(|&opcode| opcode as u32 == bits)
    }
}

/// A completion (`struct ibv_wc`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The program's identifier.
    pub wr_id: u64,
    /// Outcome.
    pub status: WcStatus,
    /// Operation.
    pub opcode: WcOpcode,
    /// Vendor error code; ours name the failed check.
    pub vendor_err: u32,
    /// Bytes transferred.
    pub byte_len: u32,
    /// Immediate data (host order of the wire word) or invalidated key, as `flags` says. Of an operation on a matching list: the
    /// unexpected messages that the queue has delivered, modulo 2^16.
    pub imm_or_key: u32,
    /// Local QP number.
    pub qp_num: u32,
    /// Source QP number on UD.
    pub src_qp: u32,
    /// Source address of a datagram. Not kept in memory that a front end provides for a queue.
    pub src_ip: Option<IpAddr>,
    /// Control information of the VLAN tag that a datagram came with. Not kept there either.
    pub vlan: Option<u16>,
    /// Flags.
    pub flags: WcFlags,
    /// Service level field as programs expect it on RoCE (the L3 type for UCX's UD).
    pub sl: u8,
    /// Nanoseconds on the device's clock.
    pub timestamp_ns: u64,
    /// The sender asked for a solicited event, or the completion is an error.
    pub solicited: bool,
    /// Of the tag-matching header.
    pub tm: TmInfo,
}

impl Completion {
    /// A completion with nothing but who and what.
    pub fn new(wr_id: u64, status: WcStatus, opcode: WcOpcode, qp_num: u32) -> Completion {
        Completion {
            wr_id,
            status,
            opcode,
            vendor_err: 0,
            byte_len: 0,
            imm_or_key: 0,
            qp_num,
            src_qp: 0,
            src_ip: None,
            vlan: None,
            flags: WcFlags::empty(),
            sl: 0,
            timestamp_ns: 0,
            solicited: false,
            tm: TmInfo::default(),
        }
    }
}

/// A global identifier: on RoCEv2 an IPv6 address or a mapped IPv4 address.
pub type Gid = [u8; 16];

/// Address vector (`struct ibv_ah_attr`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AhAttr {
    /// A GRH follows; must be set on RoCE.
    pub is_global: bool,
    /// Destination GID.
    pub dgid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Index of the source GID.
    pub sgid_index: u8,
    /// Time to live.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// LID, unused on RoCE.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// Source path bits.
    pub src_path_bits: u8,
    /// Static rate code.
    pub static_rate: u8,
    /// Port, from 1.
    pub port_num: u8,
    /// Hardware address of the next hop, on [`Network::Ethernet`](crate::Network::Ethernet).
    pub dmac: Mac,
    /// UDP source port there; 0 leaves it to the link.
    pub udp_src: u16,
}

/// QP attributes (`struct ibv_qp_attr`); an [`AttrMask`] says which are meant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of the verbs manual page ibv_modify_qp(3)")]
pub struct QpAttr {
    pub qp_state: QpState,
    pub cur_qp_state: QpState,
    /// `enum ibv_mtu`: 1 = 256 to 5 = 4096.
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub access: Access,
    pub cap: QpCap,
    pub ah: AhAttr,
    pub alt_ah: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: bool,
    pub sq_draining: bool,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub rate_limit: u32,
}

/// Events that a QP, CQ, SRQ or port raises (`enum ibv_event_type`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
#[allow(
    missing_docs,
    reason = "the names are those of the verbs manual page ibv_get_async_event(3)"
)]
pub enum EventType {
    CqErr = 0,
    QpFatal = 1,
    QpReqErr = 2,
    QpAccessErr = 3,
    CommEst = 4,
    SqDrained = 5,
    PathMig = 6,
    PathMigErr = 7,
    DeviceFatal = 8,
    PortActive = 9,
    PortErr = 10,
    LidChange = 11,
    PkeyChange = 12,
    SmChange = 13,
    SrqErr = 14,
    SrqLimitReached = 15,
    QpLastWqeReached = 16,
    ClientReregister = 17,
    GidChange = 18,
    WqFatal = 19,
}
