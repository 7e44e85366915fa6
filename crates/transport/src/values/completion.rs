//! Completions.

use std::net::IpAddr;

bitflags::bitflags! {
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
    /// Immediate data (host order of the wire word) or invalidated key, as `flags` says. Of an
    /// operation on a matching list: the unexpected messages that the queue has delivered, modulo
    /// 2^16.
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
    /// What the tag-matching header says.
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

/// The part of a tag-matching header that the program sees (`struct ibv_wc_tm_info`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TmInfo {
    /// Tag of the message that met a tagged buffer; else 0.
    pub tag: u64,
    /// The sender's opaque word.
    pub app_ctx: u32,
}
