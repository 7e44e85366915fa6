//! The C ABI of libibverbs: structs, the functions looked up by name, and the operations that the header's inline
//! functions reach through `context->ops`. Only what this crate uses; fields it never names are padding.
//! Layouts: `infiniband/verbs.h`, the same for every libibverbs since IBVERBS_1.1.

use libc::{c_char, c_int, c_uint, c_void, size_t};

/// Objects of which only the address matters.
#[repr(C)]
pub struct Device {
    _opaque: [u8; 0],
}
/// See [`Device`].
#[repr(C)]
pub struct Cq {
    pub context: *mut Context,
}

#[repr(C)]
pub struct Context {
    pub device: *mut Device,
    pub ops: ContextOps,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    // A mutex and abi_compat follow; never touched here.
}

/// `struct ibv_context_ops`: 32 function pointers, of which four are data path.
#[repr(C)]
pub struct ContextOps {
    _before_poll: [*mut c_void; 11],
    pub poll_cq: Option<unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int>,
    pub req_notify_cq: Option<unsafe extern "C" fn(*mut Cq, c_int) -> c_int>,
    _before_send: [*mut c_void; 12],
    pub post_send: Option<unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int>,
    pub post_recv: Option<unsafe extern "C" fn(*mut Qp, *mut RecvWr, *mut *mut RecvWr) -> c_int>,
    _after: [*mut c_void; 5],
}

#[repr(C)]
pub struct Pd {
    pub context: *mut Context,
    pub handle: u32,
}

#[repr(C)]
pub struct Mr {
    pub context: *mut Context,
    pub pd: *mut Pd,
    pub addr: *mut c_void,
    pub length: size_t,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

#[repr(C)]
pub struct Qp {
    pub context: *mut Context,
    pub qp_context: *mut c_void,
    pub pd: *mut Pd,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
}

#[repr(C)]
pub struct CompChannel {
    pub context: *mut Context,
    pub fd: c_int,
    pub refcnt: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct QpCap {
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
}

#[repr(C)]
pub struct QpInitAttr {
    pub qp_context: *mut c_void,
    pub send_cq: *mut Cq,
    pub recv_cq: *mut Cq,
    pub srq: *mut c_void,
    pub cap: QpCap,
    pub qp_type: u32,
    pub sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct AhAttr {
    pub dgid: [u64; 2],
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct QpAttr {
    pub qp_state: u32,
    pub cur_qp_state: u32,
    pub path_mtu: u32,
    pub path_mig_state: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: c_uint,
    pub cap: QpCap,
    pub ah_attr: AhAttr,
    pub alt_ah_attr: AhAttr,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub en_sqd_async_notify: u8,
    pub sq_draining: u8,
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

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Sge {
    pub addr: u64,
    pub length: u32,
    pub lkey: u32,
}

#[repr(C)]
#[derive(Default)]
pub struct SendWr {
    pub wr_id: u64,
    pub next: usize,
    pub sg_list: usize,
    pub num_sge: c_int,
    pub opcode: u32,
    pub send_flags: c_uint,
    /// Network byte order.
    pub imm_data: u32,
    pub remote_addr: u64,
    /// `rdma`: rkey in the low half. `atomic`: compare or add value.
    pub rkey_or_compare: u64,
    pub swap: u64,
    pub atomic_rkey: u64,
    pub _qp_type: [u64; 1],
    pub _mw_or_tso: [u64; 6],
}

#[repr(C)]
#[derive(Default)]
pub struct RecvWr {
    pub wr_id: u64,
    pub next: usize,
    pub sg_list: usize,
    pub num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Wc {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub vendor_err: u32,
    pub byte_len: u32,
    /// Immediate data in network byte order, or an invalidated key in host order.
    pub imm_data: u32,
    pub qp_num: u32,
    pub src_qp: u32,
    pub wc_flags: c_uint,
    pub pkey_index: u16,
    pub slid: u16,
    pub sl: u8,
    pub dlid_path_bits: u8,
}

#[repr(C)]
pub struct DeviceAttr {
    pub fw_ver: [c_char; 64],
    pub node_guid: u64,
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: c_int,
    pub max_qp_wr: c_int,
    pub device_cap_flags: c_uint,
    pub max_sge: c_int,
    pub max_sge_rd: c_int,
    pub max_cq: c_int,
    pub max_cqe: c_int,
    pub max_mr: c_int,
    pub max_pd: c_int,
    pub max_qp_rd_atom: c_int,
    pub max_ee_rd_atom: c_int,
    pub max_res_rd_atom: c_int,
    pub max_qp_init_rd_atom: c_int,
    pub max_ee_init_rd_atom: c_int,
    pub atomic_cap: u32,
    _limits: [u8; 59],
    pub phys_port_cnt: u8,
    _pad: [u8; 4],
}

/// `struct ibv_device_attr_ex` of rdma-core 34 and later; what follows the flags is not named.
#[repr(C)]
pub struct DeviceAttrEx {
    _attr: DeviceAttr,
    _comp_mask: u32,
    pub odp_general: u64,
    pub odp_rc: u32,
    _odp_others: [u32; 2],
    _clock: [u64; 2],
    pub device_cap_flags_ex: u64,
    _after: [u64; 14],
}

impl DeviceAttrEx {
    pub fn zeroed() -> DeviceAttrEx {
        // SAFETY: every field is an integer or an array of such.
        unsafe { std::mem::zeroed() }
    }
}

pub type QueryDeviceEx =
    unsafe extern "C" fn(*mut Context, *const c_void, *mut DeviceAttrEx, size_t) -> c_int;

/// `ibv_query_device_ex(3)`, which the header reaches through `struct verbs_context`, the struct that a context ends
/// (`verbs_get_ctx_op`).
///
/// # Safety
/// `context` is one that a libibverbs opened.
pub unsafe fn query_device_ex(context: *mut Context) -> Option<QueryDeviceEx> {
    // Behind what [`Context`] names: a mutex and `abi_compat`, which says whether the struct around it is there.
    const ABI_COMPAT: usize = 320;
    const EXTENDED: usize = usize::MAX;
    // Before the context: the struct's size, and twelve places before that the operation.
    const SIZE: usize = 8;
    const QUERY: usize = 13 * 8;
    const CONTEXT: usize = 328;
    let bytes = context.cast::<u8>();
    // SAFETY: a context is 328 bytes long in every libibverbs since IBVERBS_1.1.
    if unsafe { bytes.add(ABI_COMPAT).cast::<usize>().read() } != EXTENDED {
        return None;
    }
    // SAFETY: the context ends a `struct verbs_context`, whose first word before it is its size.
    if unsafe { bytes.sub(SIZE).cast::<usize>().read() } < CONTEXT + QUERY {
        return None;
    }
    // SAFETY: by its size the struct has this operation, null where the device lacks it.
    unsafe { bytes.sub(QUERY).cast::<Option<QueryDeviceEx>>().read() }
}

#[repr(C)]
#[derive(Default)]
pub struct PortAttr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: c_int,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct GidEntry {
    pub gid: [u64; 2],
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}

pub const QPT_RC: u32 = 2;
pub const SEND_INLINE: c_uint = 1 << 3;
pub const WC_WITH_IMM: c_uint = 1 << 1;
pub const WC_WITH_INV: c_uint = 1 << 3;

/// `enum ibv_qp_attr_mask`.
pub mod mask {
    use libc::c_int;
    pub const STATE: c_int = 1;
    pub const ACCESS_FLAGS: c_int = 1 << 3;
    pub const PKEY_INDEX: c_int = 1 << 4;
    pub const PORT: c_int = 1 << 5;
    pub const AV: c_int = 1 << 7;
    pub const PATH_MTU: c_int = 1 << 8;
    pub const TIMEOUT: c_int = 1 << 9;
    pub const RETRY_CNT: c_int = 1 << 10;
    pub const RNR_RETRY: c_int = 1 << 11;
    pub const RQ_PSN: c_int = 1 << 12;
    pub const MAX_QP_RD_ATOMIC: c_int = 1 << 13;
    pub const MIN_RNR_TIMER: c_int = 1 << 15;
    pub const SQ_PSN: c_int = 1 << 16;
    pub const MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
    pub const DEST_QPN: c_int = 1 << 20;
}

macro_rules! functions {
    ($(fn $name:ident($($arg:ty),*) $(-> $ret:ty)?;)* optional: $(fn $oname:ident = $osym:literal ($($oarg:ty),*) -> $oret:ty;)*) => {
        /// The exported functions, looked up once. The optional ones are missing in older libraries.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub $oname: Option<unsafe extern "C" fn($($oarg),*) -> $oret>,)*
        }

        impl Functions {
            /// Fills the table from `find`; the error is the name of a function that is missing.
            ///
            /// # Safety
            /// `find` must answer with the address of the libibverbs function of that name, or null.
            pub unsafe fn load(find: impl Fn(&'static str) -> *mut c_void) -> Result<Functions, &'static str> {
                Ok(Functions {
                    $($name: {
                        let address = find(concat!(stringify!($name), "\0"));
                        if address.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: the caller vouches that the address is this function, whose C prototype this is.
                        unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>(address) }
                    },)*
                    $($oname: {
                        let address = find(concat!($osym, "\0"));
                        // SAFETY: as above; a null pointer is `None`.
                        unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($oarg),*) -> $oret>>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    fn ibv_get_device_list(*mut c_int) -> *mut *mut Device;
    fn ibv_free_device_list(*mut *mut Device);
    fn ibv_get_device_name(*mut Device) -> *const c_char;
    fn ibv_get_device_guid(*mut Device) -> u64;
    fn ibv_open_device(*mut Device) -> *mut Context;
    fn ibv_close_device(*mut Context) -> c_int;
    fn ibv_query_device(*mut Context, *mut DeviceAttr) -> c_int;
    fn ibv_query_port(*mut Context, u8, *mut PortAttr) -> c_int;
    fn ibv_query_gid(*mut Context, u8, c_int, *mut [u64; 2]) -> c_int;
    fn ibv_alloc_pd(*mut Context) -> *mut Pd;
    fn ibv_dealloc_pd(*mut Pd) -> c_int;
    fn ibv_reg_mr(*mut Pd, *mut c_void, size_t, c_int) -> *mut Mr;
    fn ibv_dereg_mr(*mut Mr) -> c_int;
    fn ibv_create_comp_channel(*mut Context) -> *mut CompChannel;
    fn ibv_destroy_comp_channel(*mut CompChannel) -> c_int;
    fn ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    fn ibv_destroy_cq(*mut Cq) -> c_int;
    fn ibv_get_cq_event(*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(*mut Cq, c_uint);
    fn ibv_create_qp(*mut Pd, *mut QpInitAttr) -> *mut Qp;
    fn ibv_modify_qp(*mut Qp, *mut QpAttr, c_int) -> c_int;
    fn ibv_query_qp(*mut Qp, *mut QpAttr, c_int, *mut QpInitAttr) -> c_int;
    fn ibv_destroy_qp(*mut Qp) -> c_int;
    optional:
    fn reg_dmabuf_mr = "ibv_reg_dmabuf_mr" (*mut Pd, u64, size_t, u64, c_int, c_int) -> *mut Mr;
    fn query_mr_fd_commands = "ibv_query_mr_fd_commands" (*mut Context) -> u64;
    fn reg_mr_fd = "ibv_reg_mr_fd" (*mut Pd, u64, size_t, u64, c_int, c_int, c_int) -> *mut Mr;
    fn rereg_mr_fd = "ibv_rereg_mr_fd" (*mut Mr, c_int, *mut Pd, u64, size_t, u64, c_int, c_int, c_int) -> c_int;
    fn migrate_to_gpu = "peerdma_migrate_to_gpu" (c_uint, *mut c_void, size_t) -> isize;
    fn query_gid_ex = "_ibv_query_gid_ex" (*mut Context, u32, u32, *mut GidEntry, u32, size_t) -> c_int;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// Sizes and offsets as a C compiler reports them for verbs.h of rdma-core 44 on a 64-bit machine.
    #[test]
    fn layouts_are_those_of_verbs_h() {
        assert_eq!(size_of::<ContextOps>(), 256);
        assert_eq!(offset_of!(ContextOps, poll_cq), 88);
        assert_eq!(offset_of!(ContextOps, req_notify_cq), 96);
        assert_eq!(offset_of!(ContextOps, post_send), 200);
        assert_eq!(offset_of!(ContextOps, post_recv), 208);
        assert_eq!(offset_of!(Context, ops), 8);
        assert_eq!(offset_of!(Context, async_fd), 268);
        assert_eq!(offset_of!(Context, num_comp_vectors), 272);
        assert_eq!((size_of::<Pd>(), size_of::<Mr>(), offset_of!(Mr, lkey)), (16, 48, 36));
        assert_eq!(offset_of!(Mr, rkey), 40);
        assert_eq!((offset_of!(Qp, qp_num), offset_of!(Qp, state)), (52, 56));
        assert_eq!((size_of::<CompChannel>(), offset_of!(CompChannel, fd)), (16, 8));
        assert_eq!((size_of::<QpInitAttr>(), offset_of!(QpInitAttr, cap)), (64, 32));
        assert_eq!(offset_of!(QpInitAttr, qp_type), 52);
        assert_eq!((size_of::<AhAttr>(), offset_of!(AhAttr, dlid)), (32, 24));
        assert_eq!((offset_of!(AhAttr, sgid_index), offset_of!(AhAttr, port_num)), (20, 30));
        assert_eq!((size_of::<QpAttr>(), offset_of!(QpAttr, cap)), (144, 36));
        assert_eq!((offset_of!(QpAttr, ah_attr), offset_of!(QpAttr, alt_ah_attr)), (56, 88));
        assert_eq!((offset_of!(QpAttr, pkey_index), offset_of!(QpAttr, timeout)), (120, 130));
        assert_eq!(offset_of!(QpAttr, rate_limit), 136);
        assert_eq!((size_of::<SendWr>(), offset_of!(SendWr, imm_data)), (128, 36));
        assert_eq!(
            (offset_of!(SendWr, remote_addr), offset_of!(SendWr, rkey_or_compare)),
            (40, 48)
        );
        assert_eq!((offset_of!(SendWr, swap), offset_of!(SendWr, atomic_rkey)), (56, 64));
        assert_eq!((size_of::<RecvWr>(), size_of::<Sge>()), (32, 16));
        assert_eq!(
            (size_of::<Wc>(), offset_of!(Wc, imm_data), offset_of!(Wc, wc_flags)),
            (48, 24, 36)
        );
        assert_eq!((size_of::<DeviceAttr>(), offset_of!(DeviceAttr, max_qp_rd_atom)), (232, 144));
        assert_eq!(offset_of!(DeviceAttr, phys_port_cnt), 227);
        assert_eq!(
            (offset_of!(DeviceAttr, max_cqe), offset_of!(DeviceAttr, atomic_cap)),
            (132, 164)
        );
        assert_eq!((size_of::<DeviceAttrEx>(), offset_of!(DeviceAttrEx, odp_general)), (400, 240));
        assert_eq!(
            (offset_of!(DeviceAttrEx, odp_rc), offset_of!(DeviceAttrEx, device_cap_flags_ex)),
            (248, 280)
        );
        assert_eq!((size_of::<PortAttr>(), offset_of!(PortAttr, lid)), (52, 34));
        assert_eq!(
            (offset_of!(PortAttr, link_layer), offset_of!(PortAttr, port_cap_flags2)),
            (46, 48)
        );
        assert_eq!((size_of::<GidEntry>(), offset_of!(GidEntry, gid_type)), (32, 24));
    }
}
