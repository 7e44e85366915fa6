//! Memory without addresses of the program's: a buffer of a GPU, one that another process exported,
//! or pages of the host. The driver itself reaches the bytes through a mapping of its own.

use crate::gpu::Gpu;
use crate::sys::{Access, Domain, Mapping, Node, Place, Where, map_file, page_size};
use crate::{Error, Res, may_make};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

enum Backing {
    /// A buffer of ours, by its handle.
    Own { node: Arc<Node>, handle: u32, is_vram: bool },
    /// One that came as a descriptor.
    Imported(OwnedFd),
}

/// What a program said it would do with memory that it made by itself (`CUmemAllocationProp`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wanted {
    /// Kinds of handles that it may be shared by (`CUmemAllocationHandleType`).
    pub handle_types: u32,
    /// `allocFlags.gpuDirectRDMACapable`.
    pub rdma: u8,
}

/// Physical memory, in whole pages.
pub struct Physical {
    id: u64,
    gpu: Arc<Gpu>,
    len: u64,
    wanted: Wanted,
    backing: Backing,
    window: Mapping,
}

impl Physical {
    /// Zeroed memory of a GPU, or of the host for it, of at least `len` bytes.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`, `CUDA_ERROR_INVALID_VALUE` for 0.
    pub fn alloc(gpu: &Arc<Gpu>, len: u64, domain: Domain) -> Res<Physical> {
        let size = len.checked_next_multiple_of(page_size()).filter(|size| *size > 0);
        let size =
            size.ok_or(if len == 0 { Error::INVALID_VALUE } else { Error::OUT_OF_MEMORY })?;
        let is_vram = domain == Domain::Vram;
        if is_vram && size > gpu.free_bytes() {
            return Err(Error::OUT_OF_MEMORY);
        }
        may_make()?;
        let node = gpu.node()?;
        let handle = node.create(size, domain)?;
        if is_vram {
            gpu.take(size);
        }
        // from here on its end gives it back
        let backing = Backing::Own { node, handle, is_vram };
        Physical::new(gpu, size, backing)
    }

    /// Memory that a descriptor of a buffer stands for.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a descriptor that cannot be mapped.
    pub fn import(gpu: &Arc<Gpu>, fd: OwnedFd) -> Res<Physical> {
        may_make()?;
        let file = std::fs::File::from(fd);
        let len = file.metadata().map(|about| about.len()).unwrap_or(0);
        if len == 0 || !len.is_multiple_of(page_size()) {
            return Err(Error::INVALID_VALUE);
        }
        Physical::new(gpu, len, Backing::Imported(file.into()))
    }

    fn new(gpu: &Arc<Gpu>, len: u64, backing: Backing) -> Res<Physical> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let window = backing.map(0, len, Access::Both, Where::Anywhere);
        let window = match window {
            Ok(Some(window)) => window,
            other => {
                backing.close(gpu, len);
                return Err(other.err().map_or(Error::OPERATING_SYSTEM, Error::from));
            }
        };
        window.keep_from_children();
        let id = IDS.fetch_add(1, Relaxed);
        let wanted = Wanted::default();
        Ok(Physical { id, gpu: gpu.clone(), len, wanted, backing, window })
    }

    /// The same, with what a program wants of it.
    pub(super) fn wanted_for(mut self, wanted: Wanted) -> Physical {
        self.wanted = wanted;
        self
    }

    /// What a program wants of it.
    pub fn wanted(&self) -> Wanted {
        self.wanted
    }

    /// A number of its own in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The GPU that it is of.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the length is 0; never true.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is a GPU's own memory.
    pub fn is_vram(&self) -> bool {
        !matches!(self.backing, Backing::Own { is_vram: false, .. })
    }

    /// Its bytes as the driver reaches them.
    pub fn place(&self) -> Place {
        self.window.place()
    }

    /// Addresses that stand for all of it and that no processor may touch.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn addresses(&self) -> Res<Mapping> {
        let mapping = self.backing.map(0, self.len, Access::None, Where::Anywhere)?;
        let mapping = mapping.ok_or(Error::OPERATING_SYSTEM)?;
        mapping.keep_from_children();
        Ok(mapping)
    }

    /// Has `len` of a reservation's addresses from `at` stand for its bytes from `offset`.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY`; `CUDA_ERROR_OPERATING_SYSTEM`.
    pub fn map_over(&self, reserved: &Mapping, at: u64, offset: u64, len: u64) -> Res {
        // what the program may touch of host memory, it touches here
        let access = if self.is_vram() { Access::None } else { Access::Both };
        self.backing.map(offset, len, access, Where::Over(reserved, at))?;
        // What was mapped just now does not know it.
        reserved.keep_from_children();
        Ok(())
    }

    /// Whether the descriptor that it came as stands for all of its buffer. That of a part of one
    /// can be mapped as if it did, and only the node tells.
    ///
    /// # Errors
    /// What opening the node says, or `CUDA_ERROR_OUT_OF_MEMORY` for want of a descriptor.
    pub fn is_whole(&self) -> Res<bool> {
        let Backing::Imported(fd) = &self.backing else { return Ok(true) };
        match self.gpu.node()?.export_part(fd.as_fd(), 0, self.len) {
            // Not all of that is in a part; of another file there are none.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            // Where `/proc` does not tell of locks, there are no parts.
            Err(error) if error.raw_os_error() != Some(libc::EOPNOTSUPP) => Err(error.into()),
            _ => Ok(true),
        }
    }

    /// A descriptor of `len` bytes from `start` on: a dma-buf.
    ///
    /// # Errors
    /// As [`Physical::export`]; `CUDA_ERROR_INVALID_VALUE` for what is no part of it, or not of
    /// whole pages.
    pub fn export_part(&self, start: u64, len: u64) -> Res<OwnedFd> {
        let whole = self.export()?;
        if start == 0 && len == self.len {
            return Ok(whole);
        }
        let part = self.gpu.node()?.export_part(whole.as_fd(), start, len);
        part.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Error::INVALID_VALUE,
            // Where `/proc` does not tell of locks.
            Some(libc::EOPNOTSUPP) => Error::NOT_SUPPORTED,
            _ => error.into(),
        })
    }

    /// A descriptor of all of it: a dma-buf.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED` where peers do not reach all of it;
    /// `CUDA_ERROR_OUT_OF_MEMORY` for want of a descriptor.
    pub fn export(&self) -> Res<OwnedFd> {
        match &self.backing {
            Backing::Own { node, handle, .. } => {
                node.export(*handle).map_err(|error| match error.raw_os_error() {
                    Some(libc::ENOMEM) => Error::NOT_SUPPORTED,
                    _ => error.into(),
                })
            }
            Backing::Imported(fd) => Ok(fd.try_clone()?),
        }
    }
}

impl Backing {
    fn map(
        &self,
        offset: u64,
        len: u64,
        access: Access,
        place: Where<'_>,
    ) -> std::io::Result<Option<Mapping>> {
        match self {
            Backing::Own { node, handle, .. } => {
                let start = node.offset(*handle)?;
                map_file(node.as_fd(), start + offset, len, access, place)
            }
            Backing::Imported(fd) => map_file(fd, offset, len, access, place),
        }
    }

    fn close(&self, gpu: &Gpu, len: u64) {
        if let Backing::Own { node, handle, is_vram } = self {
            node.close(*handle);
            if *is_vram {
                gpu.give(len);
            }
        }
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        self.backing.close(&self.gpu, self.len);
    }
}
