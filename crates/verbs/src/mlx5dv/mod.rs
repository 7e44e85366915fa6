//! What libmlx5's stand-in calls while the device shows itself as a ConnectX
//! (`peerdma run --model connectx`): the functions of `mlx5dv.h` that do something here, under the
//! name `peerdma_` and theirs. Without that option each fails as libmlx5's does on a device of
//! another vendor.
//!
//! Direct access to queues (`mlx5dv_init_obj`, DEVX) is not among them: its buffers and doorbells
//! are the hardware's. Those fail in the stand-in itself, and programs go on with plain verbs.

pub mod data_direct;
pub mod mkey;
pub mod signature;
pub mod wr;

use crate::base::env::{self, Model};
use crate::base::ffi::{Res, UNSUPPORTED};
use crate::base::object::object;
use crate::objects::context::Context;
use crate::objects::pd::Pd;
use verbs_sys::{ibv_context, ibv_pd};

/// Succeeds on a ConnectX; EOPNOTSUPP otherwise.
pub fn check() -> Res<()> {
    match env::model() {
        Model::ConnectX => Ok(()),
        Model::Generic => Err(UNSUPPORTED),
    }
}

/// The context behind the program's pointer.
///
/// # Safety
/// As for [`Context::of`].
pub unsafe fn context<'a>(context: *mut ibv_context) -> Res<&'a Context> {
    check()?;
    // SAFETY: the caller's promise.
    unsafe { Context::of(context) }
}

/// The protection domain behind the program's pointer.
///
/// # Safety
/// As for [`object`].
pub unsafe fn domain<'a>(pd: *mut ibv_pd) -> Res<&'a Pd> {
    check()?;
    // SAFETY: the caller's promise.
    unsafe { object::<Pd>(pd) }
}
