//! udmabuf: pages of a memfd as a dma-buf (`drivers/dma-buf/udmabuf.c`).

use super::exported::{Exported, whole_pages};
use super::ioctl::{Request, UdmabufCreate, answered, open};
use crate::{Error, Memory, Provider, Residence, Traits};
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsRawFd, OwnedFd};

const PATH: &str = "/dev/udmabuf";
const REMEDY: &str =
    "it needs a kernel with CONFIG_UDMABUF (modprobe udmabuf) and a user who may open it";
/// Bytes that the kernel makes one buffer of, in MiB.
const LIMIT: &str = "/sys/module/udmabuf/parameters/size_limit_mb";
const CREATE: Request<UdmabufCreate> = Request::write("UDMABUF_CREATE", b'u', 0x42);
/// `UDMABUF_FLAGS_CLOEXEC`.
const CLOEXEC: u32 = 1;

/// The kernel's udmabuf.
pub struct Udmabuf {
    node: OwnedFd,
}

impl Udmabuf {
    /// What its exports are: the memfd's pages, which stay where they are.
    pub const TRAITS: Traits = Traits {
        dynamic: Some(false),
        mmap: Some(true),
        moves: Some(false),
        residence: Some(Residence::Host),
    };

    /// The machine's.
    ///
    /// # Errors
    /// [`Error::NoNode`].
    pub fn open() -> Result<Udmabuf, Error> {
        Ok(Udmabuf { node: open(PATH, REMEDY)? })
    }

    /// Makes `len` bytes of a memfd from `offset` a dma-buf, as the kernel does or refuses: it
    /// wants whole pages, sealed against shrinking (`F_SEAL_SHRINK`) and not against writing
    /// (EINVAL), and EBADFD is for what is no memfd.
    fn create(&self, memfd: &OwnedFd, offset: u64, len: u64) -> Result<OwnedFd, Error> {
        let memfd = memfd.as_raw_fd() as u32;
        let mut request = UdmabufCreate { memfd, flags: CLOEXEC, offset, size: len };
        CREATE.make(&self.node, &mut request).map(answered)
    }
}

impl Provider for Udmabuf {
    fn name(&self) -> &str {
        "udmabuf"
    }
    fn traits(&self) -> Traits {
        Udmabuf::TRAITS
    }
    fn address(&self) -> Option<pcie::Address> {
        None
    }
    fn alloc(&self, len: u64) -> Result<Box<dyn Memory>, Error> {
        let size = whole_pages(len)?;
        if let Some(limit) = limit().filter(|&limit| size > limit) {
            return Err(Error::OverLimit { wanted: size, limit, file: LIMIT });
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let memfd = rustix::fs::memfd_create("peerdma-udmabuf", flags);
        let memfd = memfd.map_err(|errno| Error::System("memfd_create", errno))?;
        rustix::fs::ftruncate(&memfd, size).map_err(|errno| Error::System("ftruncate", errno))?;
        rustix::fs::fcntl_add_seals(&memfd, SealFlags::SHRINK)
            .map_err(|errno| Error::System("F_ADD_SEALS", errno))?;
        Ok(Box::new(Exported::new(self.create(&memfd, 0, size)?, len)?))
    }
}

/// The limit of one buffer in bytes, where the kernel tells it.
fn limit() -> Option<u64> {
    let text = std::fs::read_to_string(LIMIT).ok()?;
    text.trim().parse::<u64>().ok()?.checked_mul(1 << 20)
}
