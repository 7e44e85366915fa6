//! Data Direct: a second PCIe function of the HCA, a DMA engine by which its bytes take another way through the machine.
//!
//! As in `drivers/infiniband/hw/mlx5/data_direct.c`: the HCA and the function find each other by the VUID in the function's
//! Vital Product Data, and only if `HCA_CAP.data_direct` is set. Then there are two keys of access mode PA for the function,
//! one with relaxed ordering, in a protection domain of the driver. A registration attaches the dma-buf, pinned, as the
//! function, and stacks two more keys over a PA key: a KSM key with the DMA addresses, still in the driver's domain, and
//! over that a crossing key, which is the program's. When the function is unplugged every KSM key loses its memory; the
//! program's keys live on and give access to nothing.
//!
//! Lock order: the state here, then the key table.

use crate::device::Device;
use crate::mkey_context::{MkeyContext, NO_QP};
use crate::mr::Mr;
use crate::pd::Pd;
use pcie::Function;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
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
pub(crate) struct DataDirect {
    bound: Mutex<Option<Bound>>,
    /// The HCA's function, plugged in or not.
    known: OnceLock<Function>,
}

impl DataDirect {
    fn lock(&self) -> MutexGuard<'_, Option<Bound>> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn all_rights() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

impl Device {
    /// Plugs in a Data Direct function. It is bound only if this HCA may use one and the two have the same VUID; says whether
    /// one is bound now.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when no key is left.
    pub fn plug_data_direct(&self, function: &Function) -> Result<bool> {
        self.alive()?;
        let mut bound = self.data_direct.lock();
        let is_ours = self.attr().data_direct
            && function.vuid.as_ref().is_some_and(|vuid| *vuid == self.attr().vuid);
        if bound.is_none() && is_ours {
            let pd = self.alloc_pd()?.id();
            let plain = self.create_physical(pd, false)?;
            let relaxed = self.create_physical(pd, true).inspect_err(|_| {
                self.keys().remove_physical(plain);
            })?;
            *bound = Some(Bound { function: function.clone(), pd, plain, relaxed });
            self.directory().show_data_direct(function.address, true);
            let _ = self.data_direct.known.set(function.clone());
        }
        Ok(bound.is_some())
    }

    /// The key that mlx5_ib's `data_direct.c` creates.
    fn create_physical(&self, pd: PdId, relaxed_ordering: bool) -> Result<u32> {
        let context = MkeyContext {
            data_direct: true,
            a: true,
            rw: true,
            rr: true,
            lw: true,
            lr: true,
            length64: true,
            pd: pd.0,
            qpn: NO_QP,
            relaxed_ordering_write: relaxed_ordering,
            relaxed_ordering_read: relaxed_ordering,
            ..MkeyContext::default()
        };
        context
            .check_data_direct(self.attr().data_direct)
            .map_err(|_| Error::Invalid("the key of the Data Direct function is refused"))?;
        let ordering = if relaxed_ordering { Access::RELAXED_ORDERING } else { Access::empty() };
        self.keys().insert_physical(pd, all_rights() | ordering)
    }

    /// Unplugs the function: once this returns, nothing reaches memory through it, and nothing that was registered with it can
    /// be reached. Says whether there was one.
    pub fn unplug_data_direct(&self) -> bool {
        let mut bound = self.data_direct.lock();
        let Some(gone) = bound.take() else { return false };
        for memory in self.keys().take_crossed([gone.plain, gone.relaxed]) {
            memory.revoke();
        }
        self.directory().show_data_direct(gone.function.address, false);
        true
    }

    /// Does what another process asked ([`crate::directory::Reader::ask_data_direct`]).
    pub(crate) fn apply_request(&self) {
        let Some((asked, plug)) = self.directory().asked() else { return };
        match self.data_direct.known.get() {
            // Without a key left it stays unplugged, and the directory says so.
            Some(function) if plug => drop(self.plug_data_direct(function)),
            _ => drop(self.unplug_data_direct()),
        }
        self.directory().done(asked);
    }

    /// The function that is plugged in and bound.
    pub fn data_direct(&self) -> Option<Function> {
        self.data_direct.lock().as_ref().map(|bound| bound.function.clone())
    }

    /// A region over a dma-buf that `attach` attaches, pinned, as the function it is given.
    ///
    /// # Errors
    /// [`Error::NotSupported`] for an `iova` within a page, [`Error::Invalid`] without a function, those of `attach`,
    /// [`Error::Invalid`] where the addresses end beyond 2^64, [`Error::NoMemory`] when no key is left.
    pub fn reg_data_direct<E: From<Error>>(
        &self,
        pd: &Arc<Pd>,
        iova: u64,
        access: Access,
        attach: impl FnOnce(&Function) -> std::result::Result<Arc<Umem>, E>,
    ) -> std::result::Result<Arc<Mr>, E> {
        let device = self.arc()?;
        self.alive()?;
        if !iova.is_multiple_of(umem::page_size()) || access.contains(Access::ON_DEMAND) {
            return Err(Error::NotSupported("Data Direct needs an iova at a page's start").into());
        }
        let bound = self.data_direct.lock();
        let bound = bound.as_ref().ok_or(Error::Invalid("no Data Direct function is bound"))?;
        let memory = attach(&bound.function)?;
        let relaxed = access.contains(Access::RELAXED_ORDERING);
        let physical = (if relaxed { bound.relaxed } else { bound.plain }, bound.pd);
        let init = StackInit { physical, pd: pd.id(), iova, access, memory: memory.clone() };
        let keys = self.keys().insert_stacked(init)?;
        Ok(Mr::stacked(device, pd, keys, memory, iova, access))
    }
}

/// Name under which a member of the registry publishes the descriptor that makes it look what it is asked to do: whoever
/// asks writes an 8-byte 1 to it.
pub fn control_id(slot: u16) -> String {
    format!("control-{slot}")
}
