//! Protection domains (IBA 10.2.3): the identity that keys, QPs, SRQs and address handles share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use transport::values::PdId;
use transport::{Error, Result};

/// The next identity, for all devices of the process: what is in a domain of one fits none of
/// another.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    id: PdId,
    users: AtomicU32,
}

impl Pd {
    pub(crate) fn alloc() -> Arc<Pd> {
        let id = PdId(NEXT.fetch_add(1, Relaxed));
        Arc::new(Pd { id, users: AtomicU32::new(0) })
    }

    /// Identity within the process.
    pub fn id(&self) -> PdId {
        self.id
    }

    /// Ends the domain's life.
    ///
    /// # Errors
    /// [`Error::Busy`] while an object belongs to it.
    pub fn dealloc(&self) -> Result<()> {
        if self.users.load(Relaxed) > 0 {
            return Err(Error::Busy("objects still belong to the protection domain"));
        }
        Ok(())
    }

    pub(crate) fn add_user(&self) {
        self.users.fetch_add(1, Relaxed);
    }

    pub(crate) fn drop_user(&self) {
        self.users.fetch_sub(1, Relaxed);
    }
}

/// An object's place in a domain. It ends when the program destroys the object, although the engine
/// may hold the object for a moment longer; at the latest with the value.
#[derive(Debug)]
pub(crate) struct Belonging {
    pd: Arc<Pd>,
    ended: AtomicBool,
}

impl Belonging {
    pub(crate) fn new(pd: &Arc<Pd>) -> Belonging {
        pd.add_user();
        Belonging { pd: pd.clone(), ended: AtomicBool::new(false) }
    }

    pub(crate) fn id(&self) -> PdId {
        self.pd.id()
    }

    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub(crate) fn end(&self) {
        if !self.ended.swap(true, Relaxed) {
            self.pd.drop_user();
        }
    }
}

impl Drop for Belonging {
    fn drop(&mut self) {
        self.end();
    }
}
