//! Work queues, indirection tables and flow rules.

use super::{ibv_context, ibv_counters, ibv_cq, ibv_pd, ibv_recv_wr, size};
use std::ffi::{c_int, c_uint, c_void};

/// The function behind `ibv_post_wq_recv`.
pub type PostWqRecv =
    unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

#[repr(C)]
pub struct ibv_wq {
    pub context: *mut ibv_context,
    pub wq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub wq_num: u32,
    pub handle: u32,
    pub state: c_uint,
    pub wq_type: c_uint,
    pub post_recv: Option<PostWqRecv>,
    /// Kept for its size: the library keeps count of acknowledgements elsewhere.
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
    pub comp_mask: u32,
}
size!(ibv_wq, 152);

#[repr(C)]
pub struct ibv_wq_init_attr {
    pub wq_context: *mut c_void,
    pub wq_type: c_uint,
    pub max_wr: u32,
    pub max_sge: u32,
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub comp_mask: u32,
    pub create_flags: u32,
}
size!(ibv_wq_init_attr, 48);

#[repr(C)]
pub struct ibv_wq_attr {
    pub attr_mask: u32,
    pub wq_state: c_uint,
    pub curr_wq_state: c_uint,
    pub flags: u32,
    pub flags_mask: u32,
}
size!(ibv_wq_attr, 20);

#[repr(C)]
pub struct ibv_rwq_ind_table {
    pub context: *mut ibv_context,
    pub ind_tbl_handle: c_int,
    pub ind_tbl_num: c_int,
    pub comp_mask: u32,
}
size!(ibv_rwq_ind_table, 24);

#[repr(C)]
pub struct ibv_rwq_ind_table_init_attr {
    pub log_ind_tbl_size: u32,
    pub ind_tbl: *mut *mut ibv_wq,
    pub comp_mask: u32,
}
size!(ibv_rwq_ind_table_init_attr, 24);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_rx_hash_conf {
    pub rx_hash_function: u8,
    pub rx_hash_key_len: u8,
    pub rx_hash_key: *mut u8,
    pub rx_hash_fields_mask: u64,
}
size!(ibv_rx_hash_conf, 24);

#[repr(C)]
pub struct ibv_flow {
    pub comp_mask: u32,
    pub context: *mut ibv_context,
    pub handle: u32,
}
size!(ibv_flow, 24);

/// What precedes the layers of a rule.
#[repr(C)]
pub struct ibv_flow_attr {
    pub comp_mask: u32,
    /// `type` in C.
    pub kind: c_uint,
    pub size: u16,
    pub priority: u16,
    pub num_of_specs: u8,
    pub port: u8,
    pub flags: u32,
}
size!(ibv_flow_attr, 20);

/// What begins every layer of a rule (`hdr` of `struct ibv_flow_spec`).
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_flow_spec_hdr {
    /// `type` in C.
    pub kind: c_uint,
    pub size: u16,
}

/// What binds a rule to counters.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_flow_spec_counter_action {
    /// `type` in C.
    pub kind: c_uint,
    pub size: u16,
    pub counters: *mut ibv_counters,
}
size!(ibv_flow_spec_counter_action, 16);

/// A layer: its size, where its value and its mask are, and how many bytes of fields each has.
macro_rules! spec {
    ($name:ident, $fields:expr, $align:ty, $bytes:expr) => {
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub struct $name {
            /// `type` in C.
            pub kind: c_uint,
            pub size: u16,
            align_value: [$align; 0],
            pub val: [u8; $fields],
            align_mask: [$align; 0],
            pub mask: [u8; $fields],
            align_end: [u32; 0],
        }
        size!($name, $bytes);
    };
}

spec!(ibv_flow_spec_eth, 16, u16, 40);
spec!(ibv_flow_spec_ipv4, 8, u32, 24);
spec!(ibv_flow_spec_ipv4_ext, 12, u32, 32);
spec!(ibv_flow_spec_ipv6, 39, u32, 88);
spec!(ibv_flow_spec_tcp_udp, 4, u16, 16);
