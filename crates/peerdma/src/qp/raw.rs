//! A queue pair as the library has it: what its calls are, whoever owns it.

use crate::cq::Cq;
use crate::error::{Result, check};
use crate::ffi;
use crate::pd::Pd;
use std::fmt;
use std::ptr::NonNull;
use verbs_sys::flags::QP_STATE;
use verbs_sys::{ibv_qp, ibv_qp_attr, ibv_qp_init_attr};

/// State of a queue pair (`enum ibv_qp_state`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the names are those of ibv_modify_qp(3)")]
pub enum QpState {
    Reset = 0,
    Init = 1,
    ReadyToReceive = 2,
    ReadyToSend = 3,
    SendQueueDrained = 4,
    SendQueueError = 5,
    Error = 6,
}

/// A queue pair and what it depends on; it is destroyed when this is dropped.
pub(super) struct RawQp {
    pub(super) pd: Pd,
    _cqs: (Cq, Cq),
    pub(super) raw: NonNull<ibv_qp>,
}

// SAFETY: see OpenDevice in context.rs; posting from several threads is allowed.
unsafe impl Send for RawQp {}
// SAFETY: as above.
unsafe impl Sync for RawQp {}

impl fmt::Debug for RawQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.qpn())
    }
}

impl Drop for RawQp {
    fn drop(&mut self) {
        // SAFETY: the only owner.
        unsafe { (self.functions().ibv_destroy_qp)(self.raw.as_ptr()) };
    }
}

impl RawQp {
    pub(super) fn new(pd: Pd, cqs: (Cq, Cq), raw: NonNull<ibv_qp>) -> RawQp {
        RawQp { pd, _cqs: cqs, raw }
    }

    fn functions(&self) -> &ffi::Functions {
        self.pd.inner.context.inner.functions()
    }

    pub(super) fn qpn(&self) -> u32 {
        // SAFETY: the queue pair is alive; its number never changes.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    pub(super) fn modify(&self, attr: &mut ibv_qp_attr, mask: libc::c_int) -> Result<()> {
        // SAFETY: the queue pair is alive; the attributes are a value of verbs.h's layout.
        check("ibv_modify_qp", unsafe {
            (self.functions().ibv_modify_qp)(self.raw.as_ptr(), attr, mask)
        })
    }

    pub(super) fn state(&self) -> Result<QpState> {
        let mut attr = ibv_qp_attr::default();
        // SAFETY: null pointers and zeroes are values of the struct, which the call only fills.
        let mut init: ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the queue pair is alive and both structs are valid for the call.
        let value = unsafe {
            (self.functions().ibv_query_qp)(self.raw.as_ptr(), &mut attr, QP_STATE, &mut init)
        };
        check("ibv_query_qp", value)?;
        Ok(match attr.qp_state {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::ReadyToReceive,
            3 => QpState::ReadyToSend,
            4 => QpState::SendQueueDrained,
            5 => QpState::SendQueueError,
            _ => QpState::Error,
        })
    }
}
