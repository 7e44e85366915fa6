//! The C structs of `infiniband/verbs.h`, as programs built against rdma-core 44 to 65 lay them
//! out: of the library that programs are given instead of rdma-core's, and of the safe API over
//! either. Nothing here is a function; begin at [`ibv_context`].
//!
//! Names, order and types are those of the header, so that a reader finds each field in the manual
//! pages. Where a struct grew between the two releases the newer form is kept: older programs see
//! its beginning (or, for `verbs_context`, its end). Sizes are asserted at compile time; the unit
//! test `layout` compares every field with the installed header.
#![forbid(unsafe_code)]
#![allow(
    non_camel_case_types,
    missing_docs,
    reason = "names and meaning are those of verbs.h and its manual pages"
)]

mod ah;
mod context;
mod counters;
mod cq;
mod device;
pub mod flags;
mod flow;
mod kern;
#[cfg(test)]
mod layout;
mod mr;
mod qp;
mod srq;
mod wr;

pub use ah::*;
pub use context::*;
pub use counters::*;
pub use cq::*;
pub use device::*;
pub use flow::*;
pub use kern::*;
pub use mr::*;
pub use qp::*;
pub use srq::*;
pub use wr::*;

/// A function pointer slot that we leave empty, or whose type does not matter.
pub type Slot = Option<unsafe extern "C" fn()>;

/// Asserts a size in bytes on 64-bit targets whose `pthread_mutex_t` has 40 bytes.
macro_rules! size {
    ($ty:ty, $bytes:expr) => {
        #[cfg(target_arch = "x86_64")]
        const _: () = assert!(size_of::<$ty>() == $bytes);
    };
}
pub(crate) use size;
