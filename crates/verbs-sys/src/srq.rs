//! Shared receive queues and XRC domains.

use super::{ibv_context, ibv_cq, ibv_pd, ibv_sge, size};
use std::ffi::{c_int, c_uint, c_void};

#[repr(C)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}

#[repr(C)]
pub struct ibv_xrcd_init_attr {
    pub comp_mask: u32,
    pub fd: c_int,
    pub oflags: c_int,
}
size!(ibv_xrcd_init_attr, 12);

#[repr(C)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    /// Kept for its size: the library keeps count of acknowledgements elsewhere.
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}
size!(ibv_srq, 128);

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct ibv_srq_attr {
    pub max_wr: u32,
    pub max_sge: u32,
    pub srq_limit: u32,
}
size!(ibv_srq_attr, 12);

#[repr(C)]
pub struct ibv_srq_init_attr {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
}
size!(ibv_srq_init_attr, 24);

#[repr(C)]
pub struct ibv_tm_cap {
    pub max_num_tags: u32,
    pub max_ops: u32,
}
size!(ibv_tm_cap, 8);

#[repr(C)]
pub struct ibv_srq_init_attr_ex {
    pub srq_context: *mut c_void,
    pub attr: ibv_srq_attr,
    pub comp_mask: u32,
    pub srq_type: c_uint,
    pub pd: *mut ibv_pd,
    pub xrcd: *mut ibv_xrcd,
    pub cq: *mut ibv_cq,
    pub tm_cap: ibv_tm_cap,
}
size!(ibv_srq_init_attr_ex, 64);

#[repr(C)]
pub struct ibv_ops_wr {
    pub wr_id: u64,
    pub next: *mut ibv_ops_wr,
    pub opcode: c_uint,
    pub flags: c_int,
    pub tm: ibv_ops_tm,
}
size!(ibv_ops_wr, 72);

/// Member `tm` of [`ibv_ops_wr`].
#[repr(C)]
pub struct ibv_ops_tm {
    pub unexpected_cnt: u32,
    /// Names the buffer to remove; filled in for one added.
    pub handle: u32,
    pub recv_wr_id: u64,
    pub sg_list: *mut ibv_sge,
    pub num_sge: c_int,
    pub tag: u64,
    pub mask: u64,
}
