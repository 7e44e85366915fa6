//! Making registrations: of this process's memory and of dma-bufs. The order of the checks is the kernel's.

use crate::translation::Translation;
use crate::umem::{Keep, Shared, Umem, populate};
use crate::{AccessFlags, RegError, Segment};
use dmabuf::{AttachRequest, Attachment, ControlBlocks, DmaBuf, Hold, Mapped, Place};
use mm::{AddressSpace, Sink, page_size};
use std::os::fd::RawFd;
use std::sync::Arc;

/// Pages that `[start, start + len)` touches, or why they cannot be counted (`ib_umem_num_pages` and the checks around it).
pub(crate) fn pages(start: u64, len: u64) -> Result<u64, RegError> {
    let page = page_size();
    let end = start
        .checked_add(len)
        .and_then(|end| end.checked_next_multiple_of(page))
        .ok_or(RegError::Overflow)?;
    Ok((end - (start & !(page - 1))) / page)
}

pub(crate) fn check_pages(pages: u64) -> Result<(), RegError> {
    if pages == 0 || pages > u64::from(u32::MAX) { Err(RegError::Pages(pages)) } else { Ok(()) }
}

impl Umem {
    /// Registers `memory` of this process, as `function` reaches it (`ib_umem_get`). The pages are made resident;
    /// when any of them is about to be unmapped, `space` revokes the registration.
    ///
    /// # Errors
    /// In this order: [`RegError::Overflow`]; [`RegError::NotOffered`] for on-demand paging, which is [`Umem::on_demand`];
    /// [`RegError::Pages`]; [`RegError::Pin`] (only if `space` enforces the limit); [`RegError::NoMemory`]; [`RegError::Fault`].
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
        if len == 0 {
            // one page was pinned, but no page size covers an empty range (ib_umem_find_best_pgsz gives 0)
            return Err(RegError::Pages(0));
        }
        let route = platform.route(function, pcie::Target::HOST)?;
        let segment = Segment::of_process(memory, route);
        let keep =
            Keep { registration: Some(registration), _pinned: Some(pinned), ..Keep::default() };
        let translation = Translation::new(vec![segment]);
        Ok(Arc::new(Umem::assemble(shared, vec![Some(translation)], writable, keep)))
    }

    /// Registers `len` bytes from `offset` of the dma-buf behind a program's descriptor (`ib_umem_dmabuf_get_pinned`).
    ///
    /// # Errors
    /// In this order: [`RegError::Overflow`]; a descriptor that is no dma-buf; then those of [`Umem::from_dmabuf`].
    #[allow(
        clippy::too_many_arguments,
        reason = "one argument each of the system call, and the machine"
    )]
    pub fn from_dmabuf_fd(
        fd: RawFd,
        controls: &dyn ControlBlocks,
        offset: u64,
        len: u64,
        access: AccessFlags,
        function: &pcie::Function,
        platform: &pcie::Platform,
        hold: Hold,
    ) -> Result<Arc<Umem>, RegError> {
        offset.checked_add(len).ok_or(RegError::Overflow)?;
        let dmabuf = DmaBuf::get(fd, controls)?;
        Umem::from_dmabuf(&dmabuf, offset, len, access, function, platform, hold)
    }

    /// Registers `len` bytes from `offset` of a dma-buf, attached as `function` and held as `hold` says. The buffer outlives
    /// its descriptor.
    ///
    /// # Errors
    /// In this order: [`RegError::Overflow`], [`RegError::BeyondBuffer`], [`RegError::Pages`], the exporter's
    /// ([`RegError::DmaBuf`]).
    #[allow(clippy::too_many_arguments, reason = "as for `from_dmabuf_fd`")]
    pub fn from_dmabuf(
        dmabuf: &Arc<DmaBuf>,
        offset: u64,
        len: u64,
        access: AccessFlags,
        function: &pcie::Function,
        platform: &pcie::Platform,
        hold: Hold,
    ) -> Result<Arc<Umem>, RegError> {
        let end = offset.checked_add(len).ok_or(RegError::Overflow)?;
        let size = dmabuf.size();
        if size < end {
            return Err(RegError::BeyondBuffer { size, end });
        }
        check_pages(pages(offset, len)?)?;
        let attachment = dmabuf.attach(&AttachRequest { function, platform }, hold)?;
        if len == 0 {
            return Err(RegError::Pages(0));
        }
        let mut translations = translations(&attachment, offset, end)?;
        for translation in translations.iter_mut().flatten() {
            let target = translation.segments.first().map(|segment| segment.route.target());
            translation.translated = target.and_then(|t| platform.translated_route(function, t));
        }
        let keep = Keep { attachment: Some(Arc::new(attachment)), ..Keep::default() };
        let umem = Umem::assemble(Shared::new(), translations, access.wants_write(), keep);
        if umem.len() != len {
            return Err(RegError::BeyondBuffer { size: umem.len() + offset, end });
        }
        populate(umem.segments());
        Ok(Arc::new(umem))
    }
}

/// The part of a buffer from `offset` to `end`, by the index of its place.
pub(crate) fn translations(
    attachment: &Attachment,
    offset: u64,
    end: u64,
) -> Result<Vec<Option<Translation>>, RegError> {
    let at = |place| match attachment.mapped_at(place) {
        Ok(mapped) => Ok(Some(Translation::new(trim(mapped, offset, end)?))),
        Err(_) => Ok(None),
    };
    (0..Place::COUNT).map(at).collect()
}

/// The part of a mapped buffer from `offset` to `end`, as segments.
fn trim(mapped: &Mapped, offset: u64, end: u64) -> Result<Vec<Segment>, RegError> {
    let mut segments = Vec::new();
    let mut at = 0u64;
    for extent in &mapped.extents {
        let extent_end = at.checked_add(extent.memory.len()).ok_or(RegError::Overflow)?;
        let (first, last) = (at.max(offset), extent_end.min(end));
        if first < last {
            let part = extent.memory.part(first - at, last - first);
            let part = part.map_err(|_| RegError::Overflow)?;
            segments.push(Segment::of_process(part, mapped.route.clone()));
        }
        at = extent_end;
    }
    Ok(segments)
}
