//! The functions of libibverbs that this crate calls: those looked up by name, and those that the
//! header's inline functions reach through the context. The structs are `verbs_sys`'s.

use libc::{c_char, c_int, c_uint, c_void, size_t};
use std::mem::offset_of;
use verbs_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_device_attr, ibv_device_attr_ex,
    ibv_gid, ibv_gid_entry, ibv_mr, ibv_pd, ibv_port_attr, ibv_qp, ibv_qp_attr, ibv_qp_init_attr,
    ibv_query_device_ex_input, verbs_context,
};

/// `ibv_query_device_ex(3)`.
pub type QueryDeviceEx = unsafe extern "C" fn(
    *mut ibv_context,
    *const ibv_query_device_ex_input,
    *mut ibv_device_attr_ex,
    size_t,
) -> c_int;

/// `ibv_query_device_ex(3)`, which the header reaches through `struct verbs_context`, the struct
/// that a context ends (`verbs_get_ctx_op`).
///
/// # Safety
/// `context` is one that a libibverbs opened.
pub unsafe fn query_device_ex(context: *mut ibv_context) -> Option<QueryDeviceEx> {
    const EXTENDED: usize = usize::MAX;
    // The struct grows at its beginning, so places count backwards from the context.
    const SIZE: usize = offset_of!(verbs_context, context) - offset_of!(verbs_context, sz);
    const QUERY: usize =
        offset_of!(verbs_context, context) - offset_of!(verbs_context, query_device_ex);
    // SAFETY: an open context.
    if unsafe { (*context).abi_compat } as usize != EXTENDED {
        return None;
    }
    // SAFETY: the context ends a `struct verbs_context`, whose first word before it is its size.
    if unsafe { context.byte_sub(SIZE).cast::<usize>().read() } < size_of::<ibv_context>() + QUERY {
        return None;
    }
    // SAFETY: by its size the struct has this operation, null where the device lacks it.
    unsafe { context.byte_sub(QUERY).cast::<Option<QueryDeviceEx>>().read() }
}

macro_rules! functions {
    (
        $(fn $name:ident($($arg:ty),*) $(-> $ret:ty)?;)*
        optional:
        $(fn $oname:ident = $osym:literal ($($oarg:ty),*) -> $oret:ty;)*
    ) => {
        /// The exported functions, looked up once. The optional ones are missing in older
        /// libraries.
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub $oname: Option<unsafe extern "C" fn($($oarg),*) -> $oret>,)*
        }

        impl Functions {
            /// Fills the table from `find`; the error is the name of a function that is missing.
            ///
            /// # Safety
            /// `find` must answer with the address of the libibverbs function of that name, or
            /// null.
            pub unsafe fn load(
                find: impl Fn(&'static str) -> *mut c_void,
            ) -> Result<Functions, &'static str> {
                Ok(Functions {
                    $($name: {
                        let address = find(concat!(stringify!($name), "\0"));
                        if address.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: the caller vouches that the address is this function, whose C
                        // prototype this is.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($arg),*) $(-> $ret)?,
                            >(address)
                        }
                    },)*
                    $($oname: {
                        let address = find(concat!($osym, "\0"));
                        // SAFETY: as above; a null pointer is `None`.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($oarg),*) -> $oret>,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(*mut *mut ibv_device);
    fn ibv_get_device_name(*mut ibv_device) -> *const c_char;
    fn ibv_get_device_guid(*mut ibv_device) -> u64;
    fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(*mut ibv_context) -> c_int;
    fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    fn ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    fn ibv_reg_mr(*mut ibv_pd, *mut c_void, size_t, c_int) -> *mut ibv_mr;
    fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
    fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int)
        -> *mut ibv_cq;
    fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
    fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
    fn ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    fn ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
    fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
    optional:
    fn reg_dmabuf_mr = "ibv_reg_dmabuf_mr" (*mut ibv_pd, u64, size_t, u64, c_int, c_int)
        -> *mut ibv_mr;
    fn query_mr_fd_commands = "ibv_query_mr_fd_commands" (*mut ibv_context) -> u64;
    fn reg_mr_fd = "ibv_reg_mr_fd" (*mut ibv_pd, u64, size_t, u64, c_int, c_int, c_int)
        -> *mut ibv_mr;
    fn rereg_mr_fd = "ibv_rereg_mr_fd"
        (*mut ibv_mr, c_int, *mut ibv_pd, u64, size_t, u64, c_int, c_int, c_int) -> c_int;
    fn migrate_to_gpu = "peerdma_migrate_to_gpu" (c_uint, *mut c_void, size_t) -> isize;
    fn query_gid_ex = "_ibv_query_gid_ex"
        (*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, size_t) -> c_int;
}
