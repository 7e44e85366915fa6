//! The matching list of a tag-matching shared receive queue (ibv_post_srq_ops(3)).

use crate::base::ffi::{Errno, status};
use crate::base::object::object;
use crate::objects::lists::{List, count_of, sg_list, stopped};
use crate::objects::srq::Srq;
use hca::{Error, RecvWr, TagOp, TagWr};
use std::ffi::c_int;
use verbs_sys::flags::*;
use verbs_sys::*;

/// # Safety
/// The scatter list of an addition is live.
unsafe fn tag_wr(srq: &Srq, wr: &ibv_ops_wr) -> hca::Result<TagWr> {
    if wr.flags & !(OPS_SIGNALED | OPS_TM_SYNC) != 0 {
        return Err(Error::Invalid("unknown flag of a list operation"));
    }
    let tm = &wr.tm;
    let op = match wr.opcode {
        WR_TAG_ADD => {
            // SAFETY: the caller's promise.
            let scatter = unsafe {
                sg_list(tm.sg_list, count_of(tm.num_sge)?, |len| srq.hca().scatter_list(len))
            }?;
            let request = RecvWr { wr_id: tm.recv_wr_id, scatter };
            TagOp::Add { request, tag: tm.tag, mask: tm.mask }
        }
        WR_TAG_DEL => TagOp::Del(tm.handle),
        WR_TAG_SYNC => TagOp::Sync,
        _ => return Err(Error::Invalid("unknown list operation")),
    };
    let handled = (wr.flags & OPS_TM_SYNC != 0).then_some(tm.unexpected_cnt);
    Ok(TagWr { wr_id: wr.wr_id, op, signaled: wr.flags & OPS_SIGNALED != 0, handled })
}

/// `ibv_post_srq_ops(3)`: EINVAL for a queue that does not match tags, ENOMEM when the list is
/// full.
pub(crate) unsafe extern "C" fn post_srq_ops(
    srq: *mut ibv_srq,
    wr: *mut ibv_ops_wr,
    bad: *mut *mut ibv_ops_wr,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live SRQ.
        let srq = unsafe { object::<Srq>(srq) }?;
        if let Err(Errno(errno)) = srq.context() {
            return stopped(bad, wr, Error::System(errno, "the device is lost"));
        }
        let mut list = List::new(wr);
        // SAFETY: the program passes a list of live operations, which nobody else uses meanwhile.
        while let Some(wr) = unsafe { list.step_mut() } {
            // SAFETY: as above.
            match unsafe { tag_wr(srq, wr) }.and_then(|op| srq.hca().post_op(op)) {
                Ok(handle) => wr.tm.handle = handle.unwrap_or(wr.tm.handle),
                Err(error) => return stopped(bad, list.last(), error),
            }
        }
        Ok(())
    })
}
