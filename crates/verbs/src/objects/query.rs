//! Queries: device, port, GIDs, P_Keys, the clock.

use crate::base::ffi::{Errno, INVALID, Res, arg_mut, copy_sized, count, status};
use crate::objects::context::Context;
use crate::platform::device::text;
use std::ffi::c_int;
use std::mem::offset_of;
use verbs_sys::flags::*;
use verbs_sys::*;

// enum ibv_device_cap_flags
const CAP_UD_AV_PORT_ENFORCE: u32 = 1 << 6;
const CAP_CURR_QP_STATE_MOD: u32 = 1 << 7;
const CAP_SYS_IMAGE_GUID: u32 = 1 << 11;
const CAP_RC_RNR_NAK_GEN: u32 = 1 << 12;
const CAP_SRQ_RESIZE: u32 = 1 << 13;
const CAP_MEM_WINDOW: u32 = 1 << 17;
const CAP_XRC: u32 = 1 << 20;
/// Local invalidate, and SEND with invalidate.
const CAP_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
// enum ib_uverbs_device_cap_flags, beyond 32 bits
const CAP_EX_FLUSH_GLOBAL: u64 = 1 << 38;
const CAP_EX_ATOMIC_WRITE: u64 = 1 << 40;
const CAP_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
/// Flow rules are the program's to make.
const CAP_MANAGED_FLOW_STEERING: u32 = 1 << 29;
const DEVICE_CAP_FLAGS: u32 = CAP_UD_AV_PORT_ENFORCE
    | CAP_CURR_QP_STATE_MOD
    | CAP_SYS_IMAGE_GUID
    | CAP_RC_RNR_NAK_GEN
    | CAP_SRQ_RESIZE
    | CAP_MEM_WINDOW
    | CAP_XRC
    | CAP_MEM_MGT_EXTENSIONS
    | CAP_MEM_WINDOW_TYPE_2B
    | CAP_MANAGED_FLOW_STEERING;

// enum ibv_odp_transport_cap_bits
const ODP_SEND: u32 = 1;
const ODP_RECV: u32 = 1 << 1;
const ODP_WRITE: u32 = 1 << 2;
const ODP_READ: u32 = 1 << 3;
const ODP_ATOMIC: u32 = 1 << 4;
const ODP_SRQ_RECV: u32 = 1 << 5;
const ODP_FLUSH: u32 = 1 << 6;
const ODP_ATOMIC_WRITE: u32 = 1 << 7;
/// Everything that a reliable connection does, XRC or not.
const ODP_RC: u32 = ODP_SEND
    | ODP_RECV
    | ODP_WRITE
    | ODP_READ
    | ODP_ATOMIC
    | ODP_SRQ_RECV
    | ODP_FLUSH
    | ODP_ATOMIC_WRITE;
const ODP_CAPS: ibv_odp_caps = ibv_odp_caps {
    // IBV_ODP_SUPPORT and IBV_ODP_SUPPORT_IMPLICIT
    general_caps: 3,
    rc_odp_caps: ODP_RC,
    uc_odp_caps: ODP_SEND | ODP_RECV | ODP_WRITE | ODP_SRQ_RECV,
    ud_odp_caps: ODP_SEND | ODP_RECV | ODP_SRQ_RECV,
};

/// Atomics are atomic among the device's own; `IBV_ATOMIC_HCA`.
const ATOMIC_CAP_HCA: c_int = 1;
/// IBA 11.2.1.2 encoding, 4.096 µs × 2^15 = 134 ms: a software responder may be descheduled.
const LOCAL_CA_ACK_DELAY: u8 = 15;
/// Completion timestamps count nanoseconds: a clock of 10^6 kHz.
const CORE_CLOCK_KHZ: u64 = 1_000_000;

// Port attributes, `struct ibv_port_attr`.
const PORT_DOWN: u32 = 1;
const PORT_ACTIVE: u32 = 4;
const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
const PORT_CM_SUP: u32 = 1 << 16;
const PORT_IP_BASED_GIDS: u32 = 1 << 26;
const GRH_REQUIRED: u8 = 1;
const WIDTH_4X: u8 = 2;
const SPEED_EDR: u8 = 32;
/// 4X EDR in units of 100 Mbit/s.
const PORT_SPEED: u64 = 1000;

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn device_attr(attr: &hca::DeviceAttr) -> ibv_device_attr {
    ibv_device_attr {
        fw_ver: text(&attr.fw_ver),
        node_guid: attr.node_guid.to_be(),
        sys_image_guid: attr.sys_image_guid.to_be(),
        max_mr_size: attr.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: int(attr.max_qp),
        max_qp_wr: int(attr.max_qp_wr),
        device_cap_flags: DEVICE_CAP_FLAGS,
        max_sge: int(attr.max_sge),
        max_sge_rd: int(attr.max_sge_rd),
        max_cq: int(attr.max_cq),
        max_cqe: int(attr.max_cqe),
        max_mr: int(attr.max_mr),
        max_pd: int(attr.max_pd),
        max_qp_rd_atom: int(attr.max_qp_rd_atom),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(attr.max_res_rd_atom),
        max_qp_init_rd_atom: int(attr.max_qp_init_rd_atom),
        max_ee_init_rd_atom: 0,
        atomic_cap: ATOMIC_CAP_HCA,
        max_ee: 0,
        max_rdd: 0,
        max_mw: int(attr.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: hca::multicast::MAX_GROUPS as c_int,
        max_mcast_qp_attach: hca::multicast::MAX_MEMBERS as c_int,
        max_total_mcast_qp_attach: (hca::multicast::MAX_GROUPS * hca::multicast::MAX_MEMBERS)
            as c_int,
        max_ah: int(attr.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(attr.max_srq),
        max_srq_wr: int(attr.max_srq_wr),
        max_srq_sge: int(attr.max_srq_sge),
        max_pkeys: attr.max_pkeys as u16,
        local_ca_ack_delay: LOCAL_CA_ACK_DELAY,
        phys_port_cnt: u8::try_from(attr.phys_port_cnt).unwrap_or(u8::MAX),
    }
}

/// `ibv_query_device(3)`.
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context and a struct to fill.
        let (context, attr) = unsafe { (Context::of(context)?, arg_mut(attr)?) };
        *attr = device_attr(context.device().attr());
        Ok(())
    })
}

fn tm_caps(attr: &hca::DeviceAttr) -> ibv_tm_caps {
    ibv_tm_caps {
        max_rndv_hdr_size: hca::transport::queues::tags::MAX_RNDV_LEN as u32,
        max_num_tags: attr.max_num_tags,
        flags: TM_CAP_RC,
        max_ops: attr.max_tag_ops,
        max_sge: attr.max_srq_sge,
    }
}

/// `ibv_query_device_ex(3)`; `size` is that of the caller's header.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context, and null or a live input.
        let (context, input) = unsafe { (Context::of(context)?, input.as_ref()) };
        if input.is_some_and(|input| input.comp_mask != 0)
            || attr.is_null()
            || size < size_of::<ibv_device_attr>()
        {
            return Err(INVALID);
        }
        // SAFETY: all-zero is a valid value of this struct of integers.
        let mut out: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        out.orig_attr = device_attr(context.device().attr());
        out.completion_timestamp_mask = u64::MAX;
        out.hca_core_clock = CORE_CLOCK_KHZ;
        out.device_cap_flags_ex =
            u64::from(DEVICE_CAP_FLAGS) | CAP_EX_FLUSH_GLOBAL | CAP_EX_ATOMIC_WRITE;
        out.tm_caps = tm_caps(context.device().attr());
        out.rss_caps = ibv_rss_caps {
            supported_qpts: 1 << hca::QpType::RawPacket as u32,
            max_rwq_indirection_tables: hca::MAX_TABLES,
            max_rwq_indirection_table_size: 1 << hca::MAX_LOG_TABLE,
            rx_hash_fields_mask: hca::HashFields::all().bits(),
            rx_hash_function: RX_HASH_FUNC_TOEPLITZ,
        };
        out.max_wq_type_rq = hca::MAX_WQS;
        out.max_dm_size = crate::engine::given::MAX_BYTES;
        out.odp_caps = ODP_CAPS;
        out.xrc_odp_caps = ODP_RC;
        out.phys_port_cnt_ex = context.device().attr().phys_port_cnt;
        // SAFETY: the caller provides `size` bytes; what lies beyond our struct is cleared.
        unsafe {
            attr.cast::<u8>().write_bytes(0, size);
            copy_sized(&out, attr, size);
        }
        Ok(())
    })
}

fn port_attr(context: &Context, port: u8) -> Res<ibv_port_attr> {
    let port = context.device().port(u32::from(port))?;
    Ok(ibv_port_attr {
        state: if port.active { PORT_ACTIVE } else { PORT_DOWN },
        max_mtu: port.max_mtu,
        active_mtu: port.active_mtu,
        gid_tbl_len: int(port.gid_tbl_len),
        port_cap_flags: PORT_CM_SUP | PORT_IP_BASED_GIDS,
        max_msg_sz: port.max_msg_sz,
        bad_pkey_cntr: 0,
        qkey_viol_cntr: 0,
        pkey_tbl_len: port.pkey_tbl_len,
        lid: 0,
        sm_lid: 0,
        lmc: 0,
        max_vl_num: 1,
        sm_sl: 0,
        subnet_timeout: 0,
        init_type_reply: 0,
        active_width: WIDTH_4X,
        active_speed: SPEED_EDR,
        phys_state: if port.active { PHYS_LINK_UP } else { PHYS_DISABLED },
        link_layer: LINK_LAYER_ETHERNET,
        flags: GRH_REQUIRED,
        port_cap_flags2: 0,
        active_speed_ex: u32::from(SPEED_EDR),
    })
}

/// The slot behind `ibv_query_port(3)`; `size` is that of the caller's header.
pub(crate) unsafe extern "C" fn query_port_sized(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) }?;
        if attr.is_null() {
            return Err(INVALID);
        }
        let out = port_attr(context, port)?;
        // SAFETY: the caller provides `size` bytes; what lies beyond our struct is cleared.
        unsafe {
            attr.cast::<u8>().write_bytes(0, size);
            copy_sized(&out, attr, size);
        }
        Ok(())
    })
}

/// The exported `ibv_query_port`, for programs older than the sized slot: fills up to `flags` only.
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the arguments are the program's; its struct ends where `port_cap_flags2` begins.
    unsafe { query_port_sized(context, port, attr, offset_of!(ibv_port_attr, port_cap_flags2)) }
}

/// `ibv_query_port_speed(3)`: in units of 100 Mbit/s.
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context and a place to fill.
        let (context, speed) = unsafe { (Context::of(context)?, arg_mut(speed)?) };
        context.device().port(port)?;
        *speed = PORT_SPEED;
        Ok(())
    })
}

fn gid_entry(port: u32, entry: &hca::GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: entry.gid },
        gid_index: entry.index,
        port_num: port,
        gid_type: GID_TYPE_ROCE_V2,
        ndev_ifindex: entry.ifindex,
    }
}

/// `ibv_query_gid(3)`: an empty place reads as the zero GID.
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    count(|| {
        // SAFETY: the program passes an open context and a GID to fill.
        let (context, gid) = unsafe { (Context::of(context)?, arg_mut(gid)?) };
        let index = u32::try_from(index).map_err(|_| INVALID)?;
        let entry = context.device().gid(u32::from(port), index)?;
        gid.raw = entry.map_or([0; 16], |entry| entry.gid);
        Ok(0)
    })
}

/// `ibv_query_gid_ex(3)`: ENODATA for an empty place.
pub(crate) unsafe extern "C" fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    entry_size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) }?;
        if entry.is_null() || flags != 0 || entry_size == 0 {
            return Err(INVALID);
        }
        let found = context.device().gid(port, index)?.ok_or(Errno(libc::ENODATA))?;
        // SAFETY: the caller provides `entry_size` bytes; what lies beyond our struct is cleared.
        unsafe {
            entry.cast::<u8>().write_bytes(0, entry_size);
            copy_sized(&gid_entry(port, &found), entry, entry_size);
        }
        Ok(())
    })
}

/// `ibv_query_gid_table(3)`: the number of entries, or a negative errno.
pub(crate) unsafe extern "C" fn ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max_entries: usize,
    flags: u32,
    entry_size: usize,
) -> isize {
    let mut written = 0;
    let failed = status(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) }?;
        if flags != 0 || entry_size == 0 {
            return Err(INVALID);
        }
        for port in 1..=context.device().attr().phys_port_cnt {
            for entry in context.device().gids(port)? {
                if written == max_entries || entries.is_null() {
                    return Err(INVALID);
                }
                // SAFETY: the caller provides `max_entries` entries of `entry_size` bytes each.
                unsafe {
                    let place = entries.byte_add(written * entry_size);
                    place.cast::<u8>().write_bytes(0, entry_size);
                    copy_sized(&gid_entry(port, &entry), place, entry_size);
                }
                written += 1;
            }
        }
        Ok(())
    });
    if failed == 0 { written as isize } else { -(failed as isize) }
}

/// `ibv_query_gid_type`: what `ibv_devinfo` and pyverbs ask for. An empty place has the type
/// "IB/RoCE v1", value 0.
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    gid_type: *mut c_int,
) -> c_int {
    count(|| {
        // SAFETY: the program passes an open context and a place to fill.
        let (context, gid_type) = unsafe { (Context::of(context)?, arg_mut(gid_type)?) };
        let entry = context.device().gid(u32::from(port), index)?;
        *gid_type = if entry.is_some() { GID_TYPE_SYSFS_ROCE_V2 } else { 0 };
        Ok(0)
    })
}

/// `ibv_query_pkey(3)`: big-endian.
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    count(|| {
        // SAFETY: the program passes an open context and a place to fill.
        let (context, pkey) = unsafe { (Context::of(context)?, arg_mut(pkey)?) };
        let index = u32::try_from(index).map_err(|_| INVALID)?;
        *pkey = context.device().pkey(u32::from(port), index)?.to_be();
        Ok(0)
    })
}

/// `ibv_get_pkey_index(3)`.
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    count(|| {
        // SAFETY: the program passes an open context.
        let context = unsafe { Context::of(context) }?;
        let port_number = u32::from(port);
        let table = u32::from(context.device().port(port_number)?.pkey_tbl_len);
        let index = (0..table)
            .find(|&index| context.device().pkey(port_number, index) == Ok(u16::from_be(pkey)));
        index.map(int).ok_or(INVALID)
    })
}

/// `ibv_query_rt_values_ex(3)`: the raw clock is the one of completion timestamps.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    status(|| {
        // SAFETY: the program passes an open context and a struct to fill.
        let (context, values) = unsafe { (Context::of(context)?, arg_mut(values)?) };
        if values.comp_mask & !VALUES_MASK_RAW_CLOCK != 0 {
            return Err(INVALID);
        }
        if values.comp_mask & VALUES_MASK_RAW_CLOCK != 0 {
            // Ticks of the core clock in the nanoseconds member, seconds 0, as hardware providers
            // answer.
            values.raw_clock.tv_sec = 0;
            values.raw_clock.tv_nsec = context.device().now_ns() as i64;
        }
        Ok(())
    })
}
