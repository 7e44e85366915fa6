//! A dma-heap: buffers of the kernel's pages (`drivers/dma-buf/dma-heap.c`,
//! `drivers/dma-buf/heaps/system_heap.c`).

use super::exported::{Exported, whole_pages};
use super::ioctl::{DmaHeapAllocation, Request, answered, open};
use crate::{Error, Memory, Provider, Residence, Traits};
use rustix::fs::OFlags;
use std::os::fd::OwnedFd;

const SYSTEM: &str = "/dev/dma_heap/system";
const REMEDY: &str =
    "it needs a kernel with CONFIG_DMABUF_HEAPS_SYSTEM and a user who may open it, by default root";
const ALLOC: Request<DmaHeapAllocation> = Request::read_write("DMA_HEAP_IOCTL_ALLOC", b'H', 0);

/// A heap.
pub struct DmaHeap {
    node: OwnedFd,
}

impl DmaHeap {
    /// What its exports are: pages of the host, which stay where they are.
    pub const TRAITS: Traits = Traits {
        dynamic: Some(false),
        mmap: Some(true),
        moves: Some(false),
        residence: Some(Residence::Host),
    };

    /// The heap of ordinary pages.
    ///
    /// # Errors
    /// [`Error::NoNode`].
    pub fn system() -> Result<DmaHeap, Error> {
        Ok(DmaHeap { node: open(SYSTEM, REMEDY)? })
    }
}

impl Provider for DmaHeap {
    fn name(&self) -> &str {
        "dma-heap system"
    }
    fn traits(&self) -> Traits {
        DmaHeap::TRAITS
    }
    fn address(&self) -> Option<pcie::Address> {
        None
    }
    fn alloc(&self, len: u64) -> Result<Box<dyn Memory>, Error> {
        let fd_flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
        let size = whole_pages(len)?;
        let mut request = DmaHeapAllocation { len: size, fd: 0, fd_flags, heap_flags: 0 };
        ALLOC.make(&self.node, &mut request)?;
        Ok(Box::new(Exported::new(answered(request.fd as i32), len)?))
    }
}
