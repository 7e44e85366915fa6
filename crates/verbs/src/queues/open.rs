//! Queue pairs opened by number (ibv_open_qp(3)).

use crate::base::ffi::{INVALID, UNSUPPORTED, arg, pointer};
use crate::base::object::object;
use crate::objects::context::Context;
use crate::objects::xrc::Xrcd;
use crate::queues::qp;
use hca::QpType;
use std::ffi::c_uint;
use verbs_sys::flags::*;
use verbs_sys::*;

/// `ibv_open_qp(3)`: one more handle of the receiving half of XRC. EOPNOTSUPP for one of another
/// process of this host, in whose domain this one is not.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    pointer(|| {
        // SAFETY: the program passes an open context and a live struct.
        let (context, attr) = unsafe { (Context::of(context)?, arg(attr)?) };
        let needed = QP_OPEN_ATTR_NUM | QP_OPEN_ATTR_XRCD | QP_OPEN_ATTR_TYPE;
        if attr.comp_mask & !(needed | QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(UNSUPPORTED);
        }
        if attr.comp_mask & needed != needed || attr.qp_type != QpType::XrcRecv as c_uint {
            return Err(INVALID);
        }
        // SAFETY: the mask says that the program passes a live domain.
        let xrcd = unsafe { object::<Xrcd>(attr.xrcd) }?;
        if !std::ptr::eq(xrcd.context()?, context) {
            return Err(INVALID);
        }
        let device = context.device();
        // Another process's cannot be shared: its memory is not ours to map.
        let missing = |number| match device.neighbour_has_xrc_qp(number) {
            true => UNSUPPORTED,
            false => INVALID,
        };
        let hca = device.find_qp(attr.qp_num).ok_or_else(|| missing(attr.qp_num))?;
        hca.open(xrcd.hca().id())?;
        let named = attr.comp_mask & QP_OPEN_ATTR_CONTEXT != 0;
        let qp_context = if named { attr.qp_context } else { std::ptr::null_mut() };
        Ok(qp::opened(context, hca, qp_context))
    })
}
