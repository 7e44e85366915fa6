//! Regions of another context of the same device, imported by their handle.

use crate::base::ffi::{Errno, INVALID, pointer, quiet};
use crate::base::object::{give, object, take_back};
use crate::objects::context::Owned;
use crate::objects::facts::{Facts, Kind};
use crate::objects::pd::Pd;
use crate::regions::mr::Mr;
use engine_thread::lock;
use verbs_sys::*;

/// `ibv_import_mr(3)`: address and length are not known to the importer.
pub(crate) unsafe extern "C" fn ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr {
    pointer(|| {
        // SAFETY: the program passes a live PD.
        let pd = unsafe { object::<Pd>(pd) }?;
        let context = pd.context()?;
        let (key, facts) = match context.ucontext().objects().get(&handle) {
            Some(Owned::Mr(mr, facts)) => (mr.key(), *lock(facts)),
            _ => return Err(Errno(libc::ENOENT)),
        };
        if facts.pd != pd.hca()?.id() {
            return Err(INVALID);
        }
        let c = ibv_mr {
            context: context.as_c(),
            pd: pd.as_c(),
            addr: std::ptr::null_mut(),
            length: facts.length as usize,
            handle,
            lkey: key,
            rkey: key,
        };
        Ok(give(Box::new(Mr::imported(c, Facts { kind: Kind::Imported, ..facts }))))
    })
}

/// `ibv_unimport_mr(3)`.
pub(crate) unsafe extern "C" fn ibv_unimport_mr(c: *mut ibv_mr) {
    quiet((), || {
        // SAFETY: the program passes a live MR.
        let mr = unsafe { object::<Mr>(c) }?;
        mr.context()?;
        if mr.kind() == Kind::Imported {
            // SAFETY: it came from `give`, and the program uses it no more.
            drop(unsafe { take_back::<Mr>(c) });
        }
        Ok(())
    });
}
