//! Registering memory of this process whose pages stay resident (`ib_umem_get`).

use crate::memory::space::Segment;
use crate::memory::translation::Translation;
use crate::region::backing::Backing;
use crate::region::umem::Umem;
use crate::register::pages::{check_pages, pages};
use crate::request::error::RegError;
use crate::request::rights::AccessFlags;
use crate::revoke::Shared;
use mm::{AddressSpace, Sink, page_size};
use std::sync::Arc;

impl Umem {
    /// Registers `memory` of this process, as `function` reaches it (`ib_umem_get`). The pages are
    /// made resident; when any of them is about to be unmapped, `space` revokes the registration.
    ///
    /// # Errors
    /// In this order: [`RegError::Overflow`]; [`RegError::NotOffered`] for on-demand paging, which
    /// is [`Umem::on_demand`]; [`RegError::Pages`]; [`RegError::Pin`] (only if `space` enforces the
    /// limit); [`RegError::NoMemory`]; [`RegError::Fault`]. That no page size suits shows later, at
    /// [`Umem::best_page_size`].
    pub fn from_user(
        space: &Arc<AddressSpace>,
        memory: Sink<'static>,
        access: AccessFlags,
        function: &pcie::Function,
        platform: &pcie::Platform,
    ) -> Result<Arc<Umem>, RegError> {
        let (addr, len) = (memory.addr(), memory.len());
        let pages = pages(addr, len)?;
        space.may_pin()?;
        if access.contains(AccessFlags::ON_DEMAND) {
            return Err(RegError::NotOffered("on-demand paging here"));
        }
        check_pages(pages)?;
        let pinned = space.pin(pages)?;
        let shared = Shared::new();
        // watched before the pages are looked at: an unmap in between is not missed
        let start = addr & !(page_size() - 1);
        let range = start..start + pages * page_size();
        let registration = space.register_pinned(range, shared.clone())?;
        let writable = access.wants_write();
        mm::populate(addr, len.max(1), writable).map_err(|_| RegError::Fault)?;
        let route = platform.route(function, pcie::Target::HOST)?;
        let segment = Segment::of_process(memory, route);
        let block = registration.mapped_page_size(&(addr..addr + len));
        let backing = Backing::User { registration, _pinned: pinned };
        let translation = Translation::in_blocks(vec![segment], addr, block);
        Ok(Arc::new(Umem::assemble(shared, vec![Some(translation)], writable, backing)))
    }
}
