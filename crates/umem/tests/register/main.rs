//! Registrations of this process's memory and of dma-bufs: their checks, their accesses and their
//! end.
#![cfg(not(loom))]

mod checks;
mod dmabufs;
mod user;

use dmabuf::{
    AttachRequest, ControlBlocks, Hold, LocalControls, POISON, Placement, Storage, memfd_name,
};
use mm::{AddressSpace, Mapping, Sink, page_size};
use pcie::Platform;
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;
use umem::check::{access_flags, dmabuf_access, page_offset, rereg};
use umem::{
    AccessError, AccessFlags, AtomicOp, DmabufRange, Offered, PageSizes, RegError, Rereg,
    RevokeWatcher, Segment, Umem, process_space,
};

const RW: AccessFlags = AccessFlags::LOCAL_WRITE;
const RO: AccessFlags = AccessFlags::REMOTE_READ;
const SHORT: Duration = Duration::from_millis(50);

fn memfd(name: &str, size: u64) -> OwnedFd {
    let fd =
        rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, size).unwrap();
    fd
}

/// Memory of this test at a place that nobody else knows.
fn memory(pages: u64) -> (OwnedFd, Mapping) {
    let len = pages * page_size();
    let fd = memfd("umem-test", len);
    let map = Mapping::shared(fd.as_fd(), len).unwrap();
    (fd, map)
}

struct Bench {
    space: Arc<AddressSpace>,
    platform: Platform,
    controls: LocalControls,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            space: AddressSpace::process(),
            platform: Platform::default(),
            controls: LocalControls::default(),
        }
    }
    fn user(&self, addr: u64, len: u64, access: AccessFlags) -> Result<Arc<Umem>, RegError> {
        let hca = self.platform.named("peerdma0").unwrap();
        // SAFETY: tests write through mappings of their own only, which no reference points into.
        let memory = unsafe { Sink::vouched(addr, len) };
        let umem = Umem::from_user(&self.space, memory, access, hca, &self.platform)?;
        umem.best_page_size(addr, PageSizes::CONNECTX)?;
        Ok(umem)
    }
    fn dmabuf(&self, fd: i32, offset: u64, len: u64) -> Result<Arc<Umem>, RegError> {
        self.held(fd, offset, len, Hold::Dynamic)
    }
    fn held(&self, fd: i32, offset: u64, len: u64, hold: Hold) -> Result<Arc<Umem>, RegError> {
        let hca = self.platform.named("peerdma0").unwrap();
        let request = AttachRequest { function: hca, platform: &self.platform };
        let range = DmabufRange { fd, offset, len, iova: offset };
        let umem = Umem::from_dmabuf(&range, &self.controls, RW, &request, hold)?;
        umem.best_page_size(offset, PageSizes::CONNECTX)?;
        Ok(umem)
    }
    fn export(&self, id: u64, pages: u64) -> (OwnedFd, Storage) {
        let gpu = self.platform.named("gpu0").unwrap().address;
        let size = pages * page_size();
        let fd = memfd(&memfd_name(id), size);
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
        let own = fd.try_clone().unwrap();
        let storage = Storage::create(own, size, id, gpu, Placement::Vram).unwrap();
        self.controls.publish(id, storage.control().as_fd()).unwrap();
        (fd, storage)
    }
}
