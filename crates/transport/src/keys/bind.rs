//! Memory windows (IBA 10.6.7.2): a key over a part of a registration, bound by a work request.
//!
//! A window of type 1 is open to every QP of its protection domain and is bound anew at will; a
//! bind of length 0 unbinds it. One of type 2 (the kind B, as Linux has it) is free until it is
//! bound, is then open to the peer of the binding QP only, and becomes free again by an invalidate.
//! Windows live in the key table but not in the shared directory: a process that does not find a
//! key there asks the key's owner.

use super::rights::KeyError;
use super::table::{Entry, KeyTable, Slots};
use super::window::{Binding, Window};
use crate::error::{Error, Result};
use crate::sabotage::{self, Sabotage};
use crate::values::PdId;
use crate::values::{Access, Bind, MwType};

/// Rights that a window may give.
const RIGHTS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::ZERO_BASED);

/// Why a window is not bound (completion status MW_BIND_ERR).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    /// There is no such window, or it belongs to another protection domain.
    #[error("no such window in the queue pair's protection domain")]
    Window,
    /// A window of type 2 that is bound already, or would be bound to nothing.
    #[error("a window of type 2 must be free and get memory")]
    State,
    /// Rights that a window cannot give, or a zero-based window of type 1.
    #[error("the window cannot have these rights")]
    Rights,
    /// There is no such registration, or it belongs to another protection domain.
    #[error("no such region in the queue pair's protection domain")]
    Region,
    /// The registration allows no windows, or no writing ones, or is zero-based.
    #[error("the region does not allow such windows")]
    RegionRights,
    /// The range leaves the registration.
    #[error("range outside the region")]
    Range,
}

impl Slots {
    /// What the new binding would be, or that the window is to be unbound.
    fn check_bind(
        &self,
        (pd, qpn): (PdId, u32),
        bind: &Bind,
    ) -> std::result::Result<Option<Binding>, BindError> {
        let place = self.slot(bind.window).and_then(|slot| slot.entry.as_ref());
        let Some(Entry::Window(window)) = place else { return Err(BindError::Window) };
        if window.pd != pd {
            return Err(BindError::Window);
        }
        let two = window.mw_type == MwType::Two;
        if two && (window.binding.is_some() || bind.len == 0) {
            return Err(BindError::State);
        }
        let access = Access::from_bits(bind.access).ok_or(BindError::Rights)?;
        let zero_based = access.contains(Access::ZERO_BASED);
        if !RIGHTS.contains(access) || (zero_based && !two) {
            return Err(BindError::Rights);
        }
        if bind.len == 0 {
            return Ok(None);
        }
        let Some(Entry::Region { mkey, .. }) = self.find(bind.region) else {
            return Err(BindError::Region);
        };
        if mkey.pd != pd {
            return Err(BindError::Region);
        }
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let allowed = mkey.access.contains(Access::MW_BIND)
            && !mkey.access.contains(Access::ZERO_BASED)
            && (!writes || mkey.access.contains(Access::LOCAL_WRITE));
        if !allowed && !sabotage::on(Sabotage::SkipBindRight) {
            return Err(BindError::RegionRights);
        }
        let memory = mkey.range(bind.addr, bind.len).map_err(|_| BindError::Range)?;
        let base = if zero_based { 0 } else { bind.addr };
        Ok(Some(Binding { region: bind.region, memory, base, access, qpn }))
    }
}

impl KeyTable {
    /// A new window: of type 1 bound to nothing, of type 2 free. The key is the first of those it
    /// will have.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when the device has no key left.
    pub fn insert_window(&self, pd: PdId, mw_type: MwType) -> Result<u32> {
        self.install(Entry::Window(Window { pd, mw_type, binding: None }))
    }

    /// Ends a window, bound or not, whatever its present key.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is no such window.
    pub fn remove_window(&self, window: u32) -> Result<()> {
        let mut table = self.write();
        let place = table.slot(window).and_then(|slot| slot.entry.as_ref());
        if !matches!(place, Some(Entry::Window(_))) {
            return Err(Error::Invalid("no such window"));
        }
        if let Some(Entry::Window(Window { binding: Some(gone), .. })) = table.take(window) {
            table.release(gone.region);
        }
        Ok(())
    }

    /// Binds a window on behalf of QP `qpn` in domain `pd`. Its key becomes the old one with the
    /// tag of `bind.key`.
    ///
    /// # Errors
    /// [`BindError`]; nothing has changed then.
    pub fn bind(&self, who: (PdId, u32), bind: &Bind) -> std::result::Result<(), BindError> {
        let mut table = self.write();
        let new = table.check_bind(who, bind)?;
        if let Some(new) = &new
            && let Some(Entry::Region { windows, .. }) = table.find_mut(new.region)
        {
            *windows += 1;
            table.bound += 1;
        }
        let Some(slot) = table.slot_mut(bind.window) else { return Ok(()) };
        slot.tag = bind.key as u8;
        if let Some(Entry::Window(window)) = &mut slot.entry
            && let Some(old) = std::mem::replace(&mut window.binding, new)
        {
            table.release(old.region);
        }
        Ok(())
    }

    /// Invalidates a key by a local invalidate at QP `qpn`. Memory windows of type 2 bound to that
    /// QP can be invalidated (IBA 10.6.7.2.4), and indirect keys; they become free.
    ///
    /// # Errors
    /// Why the key cannot be.
    pub fn invalidate(&self, who: (PdId, u32), key: u32) -> std::result::Result<(), KeyError> {
        self.make_free(who, key, false)
    }

    /// The same for the peer of that QP. Not all indirect keys allow it.
    ///
    /// # Errors
    /// Why the key cannot be.
    pub fn invalidate_by_peer(
        &self,
        who: (PdId, u32),
        key: u32,
    ) -> std::result::Result<(), KeyError> {
        self.make_free(who, key, true)
    }

    fn make_free(
        &self,
        (pd, qpn): (PdId, u32),
        key: u32,
        by_peer: bool,
    ) -> std::result::Result<(), KeyError> {
        let mut table = self.write();
        let window = match table.find_mut(key) {
            Some(Entry::Window(window)) => window,
            Some(Entry::Indirect(indirect)) => return indirect.invalidate(pd, by_peer),
            Some(Entry::Region { mkey, .. }) if mkey.pd == pd => {
                if !by_peer || !mkey.invalidated_by_peers || !mkey.is_open_to(qpn) {
                    return Err(KeyError::Denied);
                }
                let umem = mkey.umem.clone();
                drop(table);
                umem.revoke();
                return Ok(());
            }
            Some(Entry::Crossing(crossing)) if crossing.pd == pd => return Err(KeyError::Denied),
            Some(_) => return Err(KeyError::ForeignPd),
            None => return Err(KeyError::Unknown),
        };
        window.binding_of(pd, qpn)?;
        if window.mw_type == MwType::One {
            return Err(KeyError::Denied);
        }
        if let Some(gone) = window.binding.take() {
            table.release(gone.region);
        }
        Ok(())
    }

    /// A QP is gone: windows of type 2 that it bound are free.
    pub fn forget_qp(&self, qpn: u32) {
        // Most processes bind none, and destroy queue pairs all the same.
        if self.read().bound > 0 {
            self.write()
                .unbind_all(|mw_type, binding| mw_type == MwType::Two && binding.qpn == qpn);
        }
    }
}
