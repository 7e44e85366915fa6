//! Data Direct: a second PCIe function of the HCA, a DMA engine by which its bytes take another way
//! through the machine.
//!
//! As in `drivers/infiniband/hw/mlx5/data_direct.c`: the HCA and the function find each other by
//! the VUID in the function's Vital Product Data, and only if the HCA has the capability. Then
//! there are two physical keys for the function, to all of its addresses, one with relaxed
//! ordering, in a protection domain of the driver. A registration attaches the dma-buf, pinned, as
//! the function, and stacks two more keys over a physical one: a translating key with the DMA
//! addresses, still in the driver's domain, and over that a crossing key, which is the program's.
//! When the function is unplugged every translating key loses its memory; the program's keys live
//! on and give access to nothing.
//!
//! Lock order: the state here, then the key table.

use crate::adapter::Adapter;
use crate::memory::mr::Mr;
use crate::memory::pd::Pd;
use engine_thread::lock;
use pcie::Function;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use transport::keys::StackInit;
use transport::values::Access;
use transport::values::PdId;
use transport::{Error, Result};
use umem::Umem;

/// The function that is plugged in, and its keys.
#[derive(Clone)]
struct Bound {
    function: Function,
    pd: PdId,
    plain: u32,
    relaxed: u32,
}

/// What a device has of Data Direct.
#[derive(Default)]
pub(crate) struct Functions {
    bound: Mutex<Option<Bound>>,
    /// The HCA's function, plugged in or not.
    known: OnceLock<Function>,
}

impl Functions {
    fn lock(&self) -> MutexGuard<'_, Option<Bound>> {
        lock(&self.bound)
    }
}

fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

/// The Data Direct function of a device: see [`Device::data_direct`](crate::Device::data_direct).
pub struct DataDirect<'a> {
    pub(crate) adapter: &'a Arc<Adapter>,
    pub(crate) functions: &'a Functions,
}

impl DataDirect<'_> {
    /// Plugs in a Data Direct function. It is bound only if this HCA may use one and the two have
    /// the same VUID; says whether one is bound now.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when no key is left.
    pub fn plug(&self, function: &Function) -> Result<bool> {
        self.adapter.alive()?;
        let mut bound = self.functions.lock();
        let is_ours = self.adapter.attr().data_direct
            && function.vuid.as_ref().is_some_and(|vuid| *vuid == self.adapter.attr().vuid);
        if bound.is_none() && is_ours {
            let pd = Pd::alloc().id();
            let plain = self.create_physical(pd, false)?;
            let relaxed = self.create_physical(pd, true).inspect_err(|_| {
                self.adapter.keys().remove_physical(plain);
            })?;
            *bound = Some(Bound { function: function.clone(), pd, plain, relaxed });
            self.adapter.directory().show_data_direct(function.address, true);
            let _ = self.functions.known.set(function.clone());
        }
        Ok(bound.is_some())
    }

    /// A key to all addresses of the function, with all rights.
    fn create_physical(&self, pd: PdId, relaxed_ordering: bool) -> Result<u32> {
        let ordering = if relaxed_ordering { Access::RELAXED_ORDERING } else { Access::empty() };
        self.adapter.keys().insert_physical(pd, all_rights() | ordering)
    }

    /// Unplugs the function: once this returns, nothing reaches memory through it, and nothing that
    /// was registered with it can be reached. Says whether there was one.
    pub fn unplug(&self) -> bool {
        let mut bound = self.functions.lock();
        let Some(gone) = bound.take() else { return false };
        for memory in self.adapter.keys().take_crossed([gone.plain, gone.relaxed]) {
            memory.revoke();
        }
        self.adapter.directory().show_data_direct(gone.function.address, false);
        true
    }

    /// Does what another process asked ([`crate::adapter::directory::Reader::ask_data_direct`]).
    pub(crate) fn apply_request(&self) {
        let Some((asked, plug)) = self.adapter.directory().asked() else { return };
        match self.functions.known.get() {
            // Without a key left it stays unplugged, and the directory says so.
            Some(function) if plug => drop(self.plug(function)),
            _ => drop(self.unplug()),
        }
        self.adapter.directory().done(asked);
    }

    /// The function that is plugged in and bound.
    pub fn function(&self) -> Option<Function> {
        self.functions.lock().as_ref().map(|bound| bound.function.clone())
    }

    /// A region over a dma-buf that `attach` attaches, pinned, as the function it is given.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for an `iova` within a page, [`Error::Invalid`] without a function,
    /// those of `attach`, [`Error::Invalid`] where the addresses end beyond 2^64,
    /// [`Error::NoMemory`] when no key is left.
    pub fn reg_mr<E: From<Error>>(
        &self,
        pd: &Arc<Pd>,
        iova: u64,
        access: Access,
        attach: impl FnOnce(&Function) -> std::result::Result<Arc<Umem>, E>,
    ) -> std::result::Result<Arc<Mr>, E> {
        self.adapter.alive()?;
        if !iova.is_multiple_of(umem::page_size()) || access.contains(Access::ON_DEMAND) {
            return Err(Error::NotSupported("Data Direct needs an iova at a page's start").into());
        }
        let bound = self.functions.lock();
        let bound = bound.as_ref().ok_or(Error::Invalid("no Data Direct function is bound"))?;
        let memory = attach(&bound.function)?;
        let relaxed = access.contains(Access::RELAXED_ORDERING);
        let physical = (if relaxed { bound.relaxed } else { bound.plain }, bound.pd);
        let init = StackInit { physical, pd: pd.id(), iova, access, memory: memory.clone() };
        let keys = self.adapter.keys().insert_stacked(init)?;
        Ok(Mr::stacked(self.adapter.clone(), pd, keys, memory, iova, access))
    }
}
