//! Queue pairs: creation, attributes and states.

pub(crate) mod attr;
pub(crate) mod create;

use crate::base::acks::Acks;
use crate::base::ffi::{Errno, Res, arg, status};
use crate::base::fork_state::Made;
use crate::base::object::{Object, object, take_back};
use crate::objects::allocator::Allocation;
use crate::objects::context::Context;
use crate::queues::builder::Builder;
use hca::QpType;
use std::any::Any;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint};
use std::sync::{Arc, OnceLock};
use verbs_sys::*;

pub(crate) use create::create_qp_ex;
pub use create::opened;

/// A queue pair. Always in the extended form.
#[repr(C)]
pub struct Qp {
    c: UnsafeCell<ibv_qp_ex>,
    hca: Arc<hca::Qp>,
    made: Made,
    acks: Arc<Acks>,
    /// Present when the program asked for the `ibv_wr_*` functions.
    builder: Option<Builder>,
    /// Present when it was made by `mlx5dv_create_qp`.
    extension: OnceLock<Box<dyn Any>>,
    sq_sig_all: c_int,
    max_inline: u32,
    /// Its queues, if the program's allocator provides them: given back after the HCA's QP is
    /// destroyed.
    _memory: Option<Allocation>,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Qp {
    type C = ibv_qp;
}

impl Qp {
    /// The HCA's queue pair.
    pub fn hca(&self) -> &Arc<hca::Qp> {
        &self.hca
    }

    /// The pointer the program holds.
    pub fn as_c(&self) -> *mut ibv_qp {
        self.c.get().cast()
    }

    /// The same pointer in its extended form.
    pub fn as_c_ex(&self) -> *mut ibv_qp_ex {
        self.c.get()
    }

    /// Acknowledgements of `ibv_ack_async_event`.
    pub fn acks(&self) -> &Acks {
        &self.acks
    }

    /// State of the `ibv_wr_*` functions.
    pub fn builder(&self) -> Option<&Builder> {
        self.builder.as_ref()
    }

    /// Gives it what `mlx5dv.h` adds. Once.
    pub(crate) fn extend(&self, extension: Box<dyn Any>) {
        let _ = self.extension.set(extension);
    }

    /// What `mlx5dv.h` adds.
    pub(crate) fn extension(&self) -> Option<&dyn Any> {
        self.extension.get().map(Box::as_ref)
    }

    /// Inline bytes that a request may carry.
    pub fn max_inline(&self) -> u32 {
        self.max_inline
    }

    /// Whether requests carry an address handle.
    pub fn is_datagram(&self) -> bool {
        self.hca.init().qp_type == QpType::Ud
    }

    /// The context it belongs to; EIO when that was the parent process's.
    pub fn context(&self) -> Res<&Context> {
        self.made.check()?;
        // SAFETY: the C struct is live and its context outlives it by the verbs contract.
        unsafe { Context::of((*self.as_c()).context) }
    }
}

/// `ibv_qp_to_qp_ex(3)`: NULL unless created with `send_ops_flags`.
pub(crate) unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the program passes null or a live QP.
    match unsafe { object::<Qp>(qp) } {
        Ok(qp) if qp.builder.is_some() => qp.as_c_ex(),
        _ => std::ptr::null_mut(),
    }
}

/// `ibv_attach_mcast(3)`. The LID is InfiniBand's; RoCE has none.
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    c: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP and a live GID.
        let (qp, gid) = unsafe { (object::<Qp>(c)?, arg(gid.cast_mut())?) };
        Ok(qp.context()?.device().multicast().attach(&qp.hca, gid.raw)?)
    })
}

/// `ibv_detach_mcast(3)`.
pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    c: *mut ibv_qp,
    gid: *const ibv_gid,
    _lid: u16,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP and a live GID.
        let (qp, gid) = unsafe { (object::<Qp>(c)?, arg(gid.cast_mut())?) };
        Ok(qp.context()?.device().multicast().detach(&qp.hca, gid.raw)?)
    })
}

/// `ibv_destroy_qp(3)`: waits for outstanding acknowledgements. The receiving half of XRC goes with
/// its last handle. EBUSY while attached to a multicast group, as `uverbs_free_qp` answers, or
/// while there is a flow rule of it.
pub(crate) unsafe extern "C" fn ibv_destroy_qp(c: *mut ibv_qp) -> c_int {
    status(|| {
        // SAFETY: the program passes a live QP.
        let qp = unsafe { object::<Qp>(c) }?;
        let context = qp.context()?;
        if context.device().multicast().has(&qp.hca) {
            return Err(Errno(libc::EBUSY));
        }
        if context.device().frames().has_flows(&qp.hca) {
            return Err(Errno(libc::EBUSY));
        }
        qp.hca.close();
        context.engine().sink.remove_object(&qp.hca, c as u64);
        // SAFETY: the C struct is live.
        context.ucontext().disown(unsafe { (*qp.as_c()).handle });
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Qp>(c) });
        Ok(())
    })
}

/// `ibv_query_qp_data_in_order(3)`: no promise, since the same-host path copies in any order.
pub(crate) unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _op: c_uint,
    _flags: u32,
) -> c_int {
    0
}

/// Posts requests that the `ibv_wr_*` functions collected: all or none.
pub fn post_built(qp: &Qp, requests: &mut Vec<hca::SendWr>) -> Res<()> {
    Ok(qp.hca.post_sends(requests)?)
}
