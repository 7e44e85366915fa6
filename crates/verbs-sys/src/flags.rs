//! Numeric values of `verbs.h`, as far as neither the HCA's types nor the safe API's enumerations
//! have them.

pub const NODE_CA: i32 = 1;
pub const TRANSPORT_IB: i32 = 0;

pub const LINK_LAYER_ETHERNET: u8 = 2;

pub const GID_TYPE_IB: u32 = 0;
pub const GID_TYPE_ROCE_V1: u32 = 1;
pub const GID_TYPE_ROCE_V2: u32 = 2;
/// `enum ibv_gid_type_sysfs`: what `ibv_query_gid_type` answers for RoCEv2.
pub const GID_TYPE_SYSFS_ROCE_V2: i32 = 1;

pub const REREG_TRANSLATION: i32 = 1;
pub const REREG_PD: i32 = 2;
pub const REREG_ACCESS: i32 = 4;
pub const REREG_SUPPORTED: i32 = 7;
pub const REREG_ERR_INPUT: i32 = -1;
pub const REREG_ERR_CMD: i32 = -4;

pub const REG_MR_MASK_IOVA: u64 = 1;
pub const REG_MR_MASK_ADDR: u64 = 1 << 1;
pub const REG_MR_MASK_FD: u64 = 1 << 2;
pub const REG_MR_MASK_FD_OFFSET: u64 = 1 << 3;
pub const REG_MR_MASK_DMAH: u64 = 1 << 4;
pub const REG_MR_MASK_BUF: u64 = 1 << 5;

pub const WC_WITH_IMM: u32 = 1 << 1;
pub const WC_WITH_INV: u32 = 1 << 3;

pub const WC_EX_WITH_BYTE_LEN: u64 = 1;
pub const WC_EX_WITH_IMM: u64 = 1 << 1;
pub const WC_EX_WITH_QP_NUM: u64 = 1 << 2;
pub const WC_EX_WITH_SRC_QP: u64 = 1 << 3;
pub const WC_EX_WITH_SLID: u64 = 1 << 4;
pub const WC_EX_WITH_SL: u64 = 1 << 5;
pub const WC_EX_WITH_DLID_PATH_BITS: u64 = 1 << 6;
pub const WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7;
pub const WC_EX_WITH_TM_INFO: u64 = 1 << 10;
pub const WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;
/// What `create_cq_ex` grants: all but VLAN and flow tag, which this device does not have.
pub const WC_EX_GRANTED: u64 = WC_EX_WITH_BYTE_LEN
    | WC_EX_WITH_IMM
    | WC_EX_WITH_QP_NUM
    | WC_EX_WITH_SRC_QP
    | WC_EX_WITH_SLID
    | WC_EX_WITH_SL
    | WC_EX_WITH_DLID_PATH_BITS
    | WC_EX_WITH_COMPLETION_TIMESTAMP
    | WC_EX_WITH_TM_INFO
    | WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

pub const CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
pub const CQ_INIT_ATTR_MASK_PD: u32 = 1 << 1;
pub const CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;

pub const SRQ_MAX_WR: i32 = 1;
pub const SRQ_LIMIT: i32 = 1 << 1;
pub const SRQT_BASIC: u32 = 0;
pub const SRQT_XRC: u32 = 1;
pub const SRQT_TM: u32 = 2;
pub const SRQ_INIT_ATTR_TYPE: u32 = 1;
pub const SRQ_INIT_ATTR_PD: u32 = 1 << 1;
pub const SRQ_INIT_ATTR_XRCD: u32 = 1 << 2;
pub const SRQ_INIT_ATTR_CQ: u32 = 1 << 3;
pub const SRQ_INIT_ATTR_TM: u32 = 1 << 4;

pub const TM_CAP_RC: u32 = 1;
pub const WR_TAG_ADD: u32 = 0;
pub const WR_TAG_DEL: u32 = 1;
pub const WR_TAG_SYNC: u32 = 2;
pub const OPS_SIGNALED: i32 = 1;
pub const OPS_TM_SYNC: i32 = 1 << 1;

pub const WQT_RQ: u32 = 0;
pub const WQ_INIT_ATTR_FLAGS: u32 = 1;
pub const WQ_ATTR_STATE: u32 = 1;
pub const WQ_ATTR_CURR_STATE: u32 = 1 << 1;
pub const WQ_ATTR_FLAGS: u32 = 1 << 2;

pub const RX_HASH_FUNC_TOEPLITZ: u8 = 1;

pub const XRCD_INIT_ATTR_FD: u32 = 1;
pub const XRCD_INIT_ATTR_OFLAGS: u32 = 1 << 1;

pub const QPT_RC: u32 = 2;

pub const QP_STATE: i32 = 1;
pub const QP_ACCESS_FLAGS: i32 = 1 << 3;
pub const QP_PKEY_INDEX: i32 = 1 << 4;
pub const QP_PORT: i32 = 1 << 5;
pub const QP_AV: i32 = 1 << 7;
pub const QP_PATH_MTU: i32 = 1 << 8;
pub const QP_TIMEOUT: i32 = 1 << 9;
pub const QP_RETRY_CNT: i32 = 1 << 10;
pub const QP_RNR_RETRY: i32 = 1 << 11;
pub const QP_RQ_PSN: i32 = 1 << 12;
pub const QP_MAX_QP_RD_ATOMIC: i32 = 1 << 13;
pub const QP_MIN_RNR_TIMER: i32 = 1 << 15;
pub const QP_SQ_PSN: i32 = 1 << 16;
pub const QP_MAX_DEST_RD_ATOMIC: i32 = 1 << 17;
pub const QP_DEST_QPN: i32 = 1 << 20;

pub const QP_INIT_ATTR_PD: u32 = 1;
pub const QP_INIT_ATTR_XRCD: u32 = 1 << 1;
pub const QP_INIT_ATTR_CREATE_FLAGS: u32 = 1 << 2;
pub const QP_INIT_ATTR_IND_TABLE: u32 = 1 << 4;
pub const QP_INIT_ATTR_RX_HASH: u32 = 1 << 5;
pub const QP_INIT_ATTR_SEND_OPS_FLAGS: u32 = 1 << 6;

pub const QP_OPEN_ATTR_NUM: u32 = 1;
pub const QP_OPEN_ATTR_XRCD: u32 = 1 << 1;
pub const QP_OPEN_ATTR_CONTEXT: u32 = 1 << 2;
pub const QP_OPEN_ATTR_TYPE: u32 = 1 << 3;

pub const QP_EX_WITH_RDMA_WRITE: u64 = 1;
pub const QP_EX_WITH_RDMA_WRITE_WITH_IMM: u64 = 1 << 1;
pub const QP_EX_WITH_SEND: u64 = 1 << 2;
pub const QP_EX_WITH_SEND_WITH_IMM: u64 = 1 << 3;
pub const QP_EX_WITH_RDMA_READ: u64 = 1 << 4;
pub const QP_EX_WITH_ATOMIC_CMP_AND_SWP: u64 = 1 << 5;
pub const QP_EX_WITH_ATOMIC_FETCH_AND_ADD: u64 = 1 << 6;
pub const QP_EX_WITH_LOCAL_INV: u64 = 1 << 7;
pub const QP_EX_WITH_BIND_MW: u64 = 1 << 8;
pub const QP_EX_WITH_SEND_WITH_INV: u64 = 1 << 9;

pub const QP_EX_WITH_FLUSH: u64 = 1 << 11;
pub const QP_EX_WITH_ATOMIC_WRITE: u64 = 1 << 12;

pub const WR_RDMA_WRITE: u32 = 0;
pub const WR_RDMA_WRITE_WITH_IMM: u32 = 1;
pub const WR_SEND: u32 = 2;
pub const WR_SEND_WITH_IMM: u32 = 3;
pub const WR_RDMA_READ: u32 = 4;
pub const WR_ATOMIC_CMP_AND_SWP: u32 = 5;
pub const WR_ATOMIC_FETCH_AND_ADD: u32 = 6;
pub const WR_LOCAL_INV: u32 = 7;
pub const WR_BIND_MW: u32 = 8;
pub const WR_SEND_WITH_INV: u32 = 9;
pub const WR_ATOMIC_WRITE: u32 = 15;

pub const SEND_INLINE: u32 = 1 << 3;

pub const VALUES_MASK_RAW_CLOCK: u32 = 1;

pub const FORK_UNNEEDED: i32 = 2;
