//! Completion queues and channels.

use super::{Slot, ibv_context, ibv_pd, size};
use std::ffi::{c_int, c_uint, c_void};

#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}
size!(ibv_comp_channel, 16);

#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    /// Kept for its size: the library keeps count of acknowledgements elsewhere.
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}
size!(ibv_cq, 128);

#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

#[repr(C)]
pub struct ibv_wc_tm_info {
    pub tag: u64,
    pub private: u32,
}
size!(ibv_wc_tm_info, 16);

pub type ReadU32 = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u32>;
pub type ReadU64 = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u64>;
pub type ReadU8 = Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> u8>;

/// `struct ibv_cq_ex`; its first members are those of `struct ibv_cq`.
#[repr(C)]
pub struct ibv_cq_ex {
    pub base: ibv_cq,
    pub comp_mask: u32,
    pub status: c_uint,
    pub wr_id: u64,
    pub start_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int>,
    pub next_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int>,
    pub end_poll: Option<unsafe extern "C" fn(*mut ibv_cq_ex)>,
    pub read_opcode: ReadU32,
    pub read_vendor_err: ReadU32,
    pub read_byte_len: ReadU32,
    pub read_imm_data: ReadU32,
    pub read_qp_num: ReadU32,
    pub read_src_qp: ReadU32,
    pub read_wc_flags: ReadU32,
    pub read_slid: ReadU32,
    pub read_sl: ReadU8,
    pub read_dlid_path_bits: ReadU8,
    pub read_completion_ts: ReadU64,
    pub read_cvlan: Slot,
    pub read_flow_tag: Slot,
    pub read_tm_info: Option<unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_wc_tm_info)>,
    pub read_completion_wallclock_ns: ReadU64,
}
size!(ibv_cq_ex, 288);

#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}
size!(ibv_cq_init_attr_ex, 56);
