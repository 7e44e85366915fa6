//! Indirect memory keys: making and ending them. Send requests lay them out (`mlx5dv/wr.rs`).
//!
//! Encryption and changes of the tag are EOPNOTSUPP.

use super::domain;
use super::signature::{answer, mlx5dv_mkey_err};
use crate::base::ffi::{INVALID, Res, UNSUPPORTED, arg, pointer, status};
use crate::base::fork_state::Made;
use crate::base::object::{Object, give, object, take_back};
use crate::objects::context::{Context, Owned};
use hca::IndirectInit;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::sync::Arc;
use verbs_sys::ibv_pd;

// enum mlx5dv_mkey_init_attr_flags
const INDIRECT: u32 = 1 << 0;
const BLOCK_SIGNATURE: u32 = 1 << 1;
const REMOTE_INVALIDATE: u32 = 1 << 4;

/// `struct mlx5dv_mkey_init_attr`.
#[repr(C)]
pub(crate) struct mlx5dv_mkey_init_attr {
    pd: *mut ibv_pd,
    create_flags: u32,
    max_entries: u16,
}

/// `struct mlx5dv_mkey`.
#[repr(C)]
pub struct mlx5dv_mkey {
    lkey: u32,
    rkey: u32,
}

/// An indirect key.
#[repr(C)]
pub struct Mkey {
    c: UnsafeCell<mlx5dv_mkey>,
    hca: Arc<hca::IndirectKey>,
    context: *mut verbs_sys::ibv_context,
    handle: u32,
    made: Made,
}

// SAFETY: repr(C), the C struct first.
unsafe impl Object for Mkey {
    type C = mlx5dv_mkey;
}

impl Mkey {
    /// lkey and rkey.
    pub fn key(&self) -> u32 {
        self.hca.key()
    }

    /// Whether it may have block signatures.
    pub fn signs(&self) -> bool {
        self.hca.init().signatures
    }

    fn context(&self) -> Res<&Context> {
        self.made.check()?;
        // SAFETY: the context outlives its keys by the verbs contract.
        unsafe { Context::of(self.context) }
    }
}

/// `mlx5dv_create_mkey(3)`.
pub(crate) unsafe extern "C" fn create_mkey(init: *mut mlx5dv_mkey_init_attr) -> *mut mlx5dv_mkey {
    pointer(|| {
        super::check()?;
        // SAFETY: the program passes a live struct.
        let init = unsafe { arg(init) }?;
        let flags = init.create_flags;
        if flags & INDIRECT == 0 || flags & !(INDIRECT | BLOCK_SIGNATURE | REMOTE_INVALIDATE) != 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: the struct names a live PD.
        let pd = unsafe { domain(init.pd) }?;
        let context = pd.context()?;
        let init = IndirectInit {
            max_entries: init.max_entries,
            remote_invalidate: flags & REMOTE_INVALIDATE != 0,
            signatures: flags & BLOCK_SIGNATURE != 0,
        };
        let hca = context.device().create_indirect_key(pd.hca()?, init)?;
        let handle = context.ucontext().own(Owned::Key(hca.clone()));
        let c = UnsafeCell::new(mlx5dv_mkey { lkey: hca.key(), rkey: hca.key() });
        let (context, made) = (context.as_c(), Made::now());
        Ok(give(Box::new(Mkey { c, hca, context, handle, made })))
    })
}

/// `mlx5dv_destroy_mkey(3)`.
pub(crate) unsafe extern "C" fn destroy_mkey(mkey: *mut mlx5dv_mkey) -> c_int {
    status(|| {
        // SAFETY: the program passes a live key.
        let key = unsafe { object::<Mkey>(mkey) }?;
        key.context()?.ucontext().disown(key.handle);
        // SAFETY: it came from `give`, and the program uses it no more.
        drop(unsafe { take_back::<Mkey>(mkey) });
        Ok(())
    })
}

/// `mlx5dv_mkey_check(3)`: EINVAL for a key that was not made for signatures.
pub(crate) unsafe extern "C" fn mkey_check(
    mkey: *mut mlx5dv_mkey,
    error: *mut mlx5dv_mkey_err,
    size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live key.
        let key = unsafe { object::<Mkey>(mkey) }?;
        key.context()?;
        if error.is_null() {
            return Err(INVALID);
        }
        // SAFETY: the program passes a struct of this size.
        unsafe { answer(key.hca.signature_error()?, error, size) }
    })
}
