//! Indirect memory keys: making and ending them. Send requests lay them out (`mlx5dv/wr.rs`).
//!
//! Block signatures, encryption and changes of the tag are EOPNOTSUPP.

use super::domain;
use crate::abi::ibv_pd;
use crate::context::{Context, Owned};
use crate::ffi::{INVALID, Res, UNSUPPORTED, arg, pointer, status};
use crate::lives::Made;
use crate::object::{Object, give, object, take_back};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

// enum mlx5dv_mkey_init_attr_flags
const INDIRECT: u32 = 1 << 0;
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
    context: *mut crate::abi::ibv_context,
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
        if flags & INDIRECT == 0 || flags & !(INDIRECT | REMOTE_INVALIDATE) != 0 {
            return Err(UNSUPPORTED);
        }
        // SAFETY: the struct names a live PD.
        let pd = unsafe { domain(init.pd) }?;
        let context = pd.context()?;
        let by_peers = flags & REMOTE_INVALIDATE != 0;
        let hca = context.device().create_indirect_key(pd.hca()?, init.max_entries, by_peers)?;
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

/// `mlx5dv_mkey_check(3)`: EINVAL, because no key here has a signature to check.
pub(crate) unsafe extern "C" fn mkey_check(
    mkey: *mut mlx5dv_mkey,
    _error: *mut c_void,
    _size: usize,
) -> c_int {
    status(|| {
        // SAFETY: the program passes a live key.
        unsafe { object::<Mkey>(mkey) }?.context()?;
        Err(INVALID)
    })
}
