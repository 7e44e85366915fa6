//! Registering a part of a dma-buf (`ib_umem_dmabuf_get_pinned`), and how an attached buffer
//! becomes segments.

use crate::memory::space::Segment;
use crate::memory::translation::Translation;
use crate::region::backing::Backing;
use crate::region::umem::Umem;
use crate::register::pages::{check_pages, pages};
use crate::request::dmabuf_range::DmabufRange;
use crate::request::error::RegError;
use crate::request::rights::AccessFlags;
use crate::revoke::Shared;
use dmabuf::{AttachRequest, Attachment, BufferLocation, ControlBlocks, DmaBuf, Hold, Mapped};
use std::sync::Arc;

impl Umem {
    /// Registers a part of the dma-buf behind a program's descriptor, attached as `request` says
    /// and held as `hold` says. The buffer outlives its descriptor.
    ///
    /// # Errors
    /// In this order: [`RegError::Overflow`]; a descriptor that is no dma-buf;
    /// [`RegError::BeyondBuffer`], [`RegError::Pages`], the exporter's ([`RegError::DmaBuf`]).
    pub fn from_dmabuf(
        range: &DmabufRange,
        controls: &dyn ControlBlocks,
        access: AccessFlags,
        request: &AttachRequest<'_>,
        hold: Hold,
    ) -> Result<Arc<Umem>, RegError> {
        let &DmabufRange { fd, offset, len, .. } = range;
        let end = range.end()?;
        let dmabuf = DmaBuf::get(fd, controls)?;
        let size = dmabuf.size();
        if size < end {
            return Err(RegError::BeyondBuffer { size, end });
        }
        check_pages(pages(offset, len)?)?;
        let (first, last) = (dmabuf.in_buffer(offset)?, dmabuf.in_buffer(end)?);
        let attachment = dmabuf.attach(request, hold)?;
        let mut translations = translations(&attachment, first, last)?;
        for translation in translations.iter_mut().flatten() {
            let target = translation.segments.first().map(|segment| segment.route.target());
            let way = |target| request.platform.translated_route(request.function, target);
            translation.translated = target.and_then(way);
        }
        let backing = Backing::DmaBuf(attachment);
        let umem = Umem::assemble(Shared::new(), translations, access.wants_write(), backing);
        if umem.len() != len {
            return Err(RegError::BeyondBuffer { size: umem.len() + offset, end });
        }
        if let Some(attachment) = umem.backing.attachment() {
            attachment.bring_in(first..last);
        }
        Ok(Arc::new(umem))
    }
}

/// The part of a buffer from `offset` to `end`, by the index of its place.
pub(crate) fn translations(
    attachment: &Attachment,
    offset: u64,
    end: u64,
) -> Result<Vec<Option<Translation>>, RegError> {
    let mut translations = Vec::with_capacity(BufferLocation::COUNT);
    for place in 0..BufferLocation::COUNT {
        translations.push(match attachment.mapped_at(place) {
            Ok(mapped) => {
                let segments = trim(mapped, offset, end)?;
                Some(Translation::in_blocks(segments, offset, mapped.block))
            }
            Err(_) => None,
        });
    }
    Ok(translations)
}

/// The part of a mapped buffer from `offset` to `end`, as segments.
fn trim(mapped: &Mapped, offset: u64, end: u64) -> Result<Vec<Segment>, RegError> {
    let mut segments = Vec::with_capacity(mapped.extents.len());
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
