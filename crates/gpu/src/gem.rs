//! Buffers by handle: what a program that opened a GPU's node owns (GEM,
//! `drivers/gpu/drm/drm_gem.c`).
//!
//! Handles are the opener's own and end with it. A buffer can be mapped at its *fake offset*, a
//! place in the node's file that stands for it, and exported as a dma-buf, which outlives the
//! handle.

use crate::{Buffer, Error, SoftwareGpu};
use dmabuf::{Placement, Storage};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Where fake offsets begin, beyond what anyone could take for an offset of data.
const FIRST_OFFSET: u64 = 1 << 32;

struct Object {
    buffer: Buffer,
    offset: u64,
    maps: bool,
}

/// The buffers of one open node.
pub struct Gem {
    gpu: SoftwareGpu,
    objects: BTreeMap<u32, Object>,
    last_handle: u32,
    next_offset: u64,
}

impl Gem {
    /// An opener of the GPU's node, without buffers.
    pub fn new(gpu: SoftwareGpu) -> Gem {
        Gem { gpu, objects: BTreeMap::new(), last_handle: 0, next_offset: FIRST_OFFSET }
    }

    /// Allocates `len` bytes; `maps` says whether the CPU may map them. Answers the handle,
    /// never 0.
    ///
    /// # Errors
    /// Those of [`SoftwareGpu::alloc_in`]; [`Error::NoHandle`] when all handles or fake offsets are
    /// used up.
    pub fn create(&mut self, len: u64, placement: Placement, maps: bool) -> Result<u32, Error> {
        let handle = self.last_handle.checked_add(1).ok_or(Error::NoHandle)?;
        let buffer = self.gpu.alloc_in(len, placement)?;
        let offset = self.next_offset;
        let end = offset.checked_add(buffer.size()).filter(|end| *end <= i64::MAX as u64);
        self.next_offset = end.ok_or(Error::NoHandle)?;
        self.last_handle = handle;
        self.objects.insert(handle, Object { buffer, offset, maps });
        Ok(handle)
    }

    fn object(&self, handle: u32) -> Result<&Object, Error> {
        self.objects.get(&handle).ok_or(Error::BadHandle(handle))
    }

    /// Length in bytes of a buffer, in whole pages.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn size(&self, handle: u32) -> Result<u64, Error> {
        Ok(self.object(handle)?.buffer.size())
    }

    /// The fake offset of a buffer.
    ///
    /// # Errors
    /// [`Error::BadHandle`]; [`Error::NotMappable`] for a buffer made without CPU access.
    pub fn fake_offset(&self, handle: u32) -> Result<u64, Error> {
        let object = self.object(handle)?;
        if object.maps { Ok(object.offset) } else { Err(Error::NotMappable) }
    }

    /// A dma-buf descriptor of a buffer; one that can only be read unless `writes`.
    ///
    /// # Errors
    /// [`Error::BadHandle`], and those of [`Buffer::export`].
    pub fn export(&self, handle: u32, writes: bool) -> Result<OwnedFd, Error> {
        self.object(handle)?.buffer.export_for(writes)
    }

    /// Gives a handle up.
    ///
    /// # Errors
    /// [`Error::BadHandle`].
    pub fn close(&mut self, handle: u32) -> Result<(), Error> {
        self.objects.remove(&handle).map(drop).ok_or(Error::BadHandle(handle))
    }

    /// What `len` bytes from a fake offset stand for: a buffer, and the offset in it.
    ///
    /// # Errors
    /// [`Error::NotMappable`] where no buffer is, or beyond the end of the one there.
    pub fn mapping(&self, offset: u64, len: u64) -> Result<(Arc<Storage>, u64), Error> {
        let end = offset.checked_add(len).ok_or(Error::NotMappable)?;
        let holds = |object: &&Object| {
            object.maps && object.offset <= offset && end <= object.offset + object.buffer.size()
        };
        let object = self.objects.values().find(holds).ok_or(Error::NotMappable)?;
        Ok((object.buffer.storage().clone(), offset - object.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dmabuf::LocalControls;
    use pcie::Platform;

    fn gem() -> Gem {
        let platform = Platform::default();
        let gpu0 = platform.named("gpu0").unwrap();
        Gem::new(SoftwareGpu::of(gpu0, Arc::new(LocalControls::default())).unwrap())
    }

    #[test]
    fn handles_offsets_and_exports_name_the_same_bytes() {
        let mut gem = gem();
        let page = mm::page_size();
        let one = gem.create(1, Placement::Vram, true).unwrap();
        let two = gem.create(page + 1, Placement::Host, true).unwrap();
        assert_eq!((gem.size(one), gem.size(two)), (Ok(page), Ok(2 * page)));
        let offset = gem.fake_offset(two).unwrap();
        let (storage, at) = gem.mapping(offset + page, page).unwrap();
        assert_eq!(at, page);
        let (file, start) = storage.file(Placement::Host);
        rustix::io::pwrite(file, b"seen", start + page).unwrap();
        let prime = gem.export(two, true).unwrap();
        let mut seen = [0; 4];
        rustix::io::pread(&prime, &mut seen, page).unwrap();
        assert_eq!(&seen, b"seen");
        let read_only = gem.export(two, false).unwrap();
        assert!(rustix::io::pwrite(&read_only, b"no", 0).is_err());
        assert_eq!(gem.mapping(offset, 2 * page + 1).err(), Some(Error::NotMappable));
        assert_eq!(gem.mapping(0, page).err(), Some(Error::NotMappable));
        gem.close(two).unwrap();
        assert_eq!(gem.close(two), Err(Error::BadHandle(two)));
        assert_eq!(gem.mapping(offset, page).err(), Some(Error::NotMappable));
        assert_eq!(gem.fake_offset(two), Err(Error::BadHandle(two)));
        // what was exported is there still
        rustix::io::pread(&prime, &mut seen, page).unwrap();
        assert_eq!(&seen, b"seen");
    }

    #[test]
    fn a_buffer_without_cpu_access_is_not_mapped() {
        let mut gem = gem();
        let handle = gem.create(1, Placement::Vram, false).unwrap();
        assert_eq!(gem.fake_offset(handle), Err(Error::NotMappable));
        assert_eq!(gem.mapping(FIRST_OFFSET, 1).err(), Some(Error::NotMappable));
    }
}
