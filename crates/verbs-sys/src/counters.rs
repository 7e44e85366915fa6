//! Counters of flow rules.

use super::{ibv_context, size};
use std::ffi::c_uint;

#[repr(C)]
pub struct ibv_counters {
    pub context: *mut ibv_context,
}
size!(ibv_counters, 8);

#[repr(C)]
pub struct ibv_counters_init_attr {
    pub comp_mask: u32,
}
size!(ibv_counters_init_attr, 4);

#[repr(C)]
pub struct ibv_counter_attach_attr {
    pub counter_desc: c_uint,
    pub index: u32,
    pub comp_mask: u32,
}
size!(ibv_counter_attach_attr, 12);
