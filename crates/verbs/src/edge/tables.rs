//! The tables behind the header's inline functions.

use crate::objects::{cq, cq_ex, pd, query, srq, wq, xrc};
use crate::platform::device;
use crate::queues::{counters, flow, mw, open, post, qp, tm};
use crate::regions::{advise, dm, null_mr};
use std::ffi::c_int;
use verbs_sys::verbs_context;

/// What `num_comp_vectors` says: completion events are not bound to interrupt vectors here, so one
/// is enough.
const COMP_VECTORS: c_int = 1;

/// The tables of a new context. What is left out has no entry: the header's inline functions then
/// say EOPNOTSUPP.
pub(crate) fn tables(device: usize, cmd_fd: c_int, async_fd: c_int) -> verbs_context {
    // SAFETY: all-zero is a valid value: every member is an integer, a nullable pointer or an
    // `Option` of a function.
    let mut c: verbs_context = unsafe { std::mem::zeroed() };
    c.query_port = Some(query::query_port_sized);
    c.advise_mr = Some(advise::advise_mr);
    c.alloc_null_mr = Some(null_mr::alloc_null_mr);
    c.create_counters = Some(counters::create_counters);
    c.destroy_counters = Some(counters::destroy_counters);
    c.attach_counters_point_flow = Some(counters::attach_counters_point_flow);
    c.read_counters = Some(counters::read_counters);
    c.alloc_dm = Some(dm::alloc_dm);
    c.free_dm = Some(dm::free_dm);
    c.reg_dm_mr = Some(dm::reg_dm_mr);
    c.alloc_parent_domain = Some(pd::alloc_parent_domain);
    c.alloc_td = Some(pd::alloc_td);
    c.dealloc_td = Some(pd::dealloc_td);
    c.post_srq_ops = Some(tm::post_srq_ops);
    c.destroy_rwq_ind_table = Some(wq::destroy_rwq_ind_table);
    c.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    c.destroy_wq = Some(wq::destroy_wq);
    c.modify_wq = Some(wq::modify_wq);
    c.create_wq = Some(wq::create_wq);
    c.query_rt_values = Some(query::query_rt_values);
    c.create_cq_ex = Some(cq_ex::create_cq_ex);
    c.query_device_ex = Some(query::query_device_ex);
    c.destroy_flow = Some(flow::destroy_flow);
    c.create_flow = Some(flow::create_flow);
    c.create_qp_ex = Some(qp::create_qp_ex);
    c.create_srq_ex = Some(srq::create_srq_ex);
    c.open_xrcd = Some(xrc::open_xrcd);
    c.close_xrcd = Some(xrc::close_xrcd);
    c.get_srq_num = Some(srq::get_srq_num);
    c.open_qp = Some(open::open_qp);
    c.sz = size_of::<verbs_context>();
    c.context.device = device::at(device);
    c.context.ops.query_device = Some(query::ibv_query_device);
    c.context.ops.query_port = Some(query::ibv_query_port);
    c.context.ops.alloc_mw = Some(mw::alloc_mw);
    c.context.ops.bind_mw = Some(mw::bind_mw);
    c.context.ops.dealloc_mw = Some(mw::dealloc_mw);
    c.context.ops.poll_cq = Some(cq::poll_cq);
    c.context.ops.req_notify_cq = Some(cq::req_notify_cq);
    c.context.ops.post_srq_recv = Some(post::post_srq_recv);
    c.context.ops.post_send = Some(post::post_send);
    c.context.ops.post_recv = Some(post::post_recv);
    c.context.cmd_fd = cmd_fd;
    c.context.async_fd = async_fd;
    c.context.num_comp_vectors = COMP_VECTORS;
    c.context.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    c.context.abi_compat = std::ptr::without_provenance_mut(usize::MAX);
    c
}
