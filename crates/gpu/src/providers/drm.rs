//! Dumb buffers of a DRM node, exported by PRIME (`drivers/gpu/drm/drm_dumb_buffers.c`, `drm_prime.c`): vgem's, or a graphics
//! card's. Only primary nodes make them.

use super::exported::{Exported, whole_pages};
use super::ioctl::{CreateDumb, DestroyDumb, PrimeHandle, Request, answered, drm_driver, open};
use crate::{Error, Memory, Provider, Residence, Traits};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::path::Path;

const REMEDY: &str = "a user of group video may open it; modprobe vgem makes one without a card";
const CREATE: Request<CreateDumb> = Request::read_write("DRM_IOCTL_MODE_CREATE_DUMB", b'd', 0xb2);
const DESTROY: Request<DestroyDumb> =
    Request::read_write("DRM_IOCTL_MODE_DESTROY_DUMB", b'd', 0xb4);
const EXPORT: Request<PrimeHandle> =
    Request::read_write("DRM_IOCTL_PRIME_HANDLE_TO_FD", b'd', 0x2d);
/// Bytes of one line of a dumb buffer: 1024 pixels of 32 bits. Drivers may make it longer.
const LINE: u64 = 4096;

/// A primary node.
pub struct DrmNode {
    name: String,
    driver: String,
    node: OwnedFd,
}

impl DrmNode {
    /// A node.
    ///
    /// # Errors
    /// [`Error::NoNode`], or [`Error::System`] for a file that is no DRM node.
    pub fn open(path: &str) -> Result<DrmNode, Error> {
        let node = open(path, REMEDY)?;
        let driver = drm_driver(&node)?;
        Ok(DrmNode { name: format!("{driver} at {path}"), driver, node })
    }

    /// The primary nodes in a folder, lowest first, each opened.
    ///
    /// # Errors
    /// [`Error::NoNode`] for the first, where there is none.
    pub fn all(folder: &Path) -> Result<Vec<Result<DrmNode, Error>>, Error> {
        let path = |minor: u32| format!("{}/card{minor}", folder.display());
        let exists = |path: &String| rustix::fs::stat(path.as_str()).is_ok();
        let found: Vec<_> = (0..64).map(path).filter(exists).collect();
        if found.is_empty() {
            return Err(Error::NoNode { path: path(0), errno: Errno::NOENT, remedy: REMEDY });
        }
        Ok(found.iter().map(|path| DrmNode::open(path)).collect())
    }

    /// A dumb buffer of at least `size` bytes; its dma-buf.
    fn create(&self, size: u64) -> Result<OwnedFd, Error> {
        let height = u32::try_from(size.div_ceil(LINE)).map_err(|_| Error::BadLength(size))?;
        let mut dumb = CreateDumb { height, width: 1024, bpp: 32, ..CreateDumb::default() };
        CREATE.make(&self.node, &mut dumb)?;
        let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
        let mut prime = PrimeHandle { handle: dumb.handle, flags, fd: -1 };
        let exported = EXPORT.make(&self.node, &mut prime);
        // The dma-buf holds the buffer; the handle was needed for the export only.
        let destroyed = DESTROY.make(&self.node, &mut DestroyDumb { handle: dumb.handle });
        exported?;
        let fd = answered(prime.fd);
        destroyed.map(|_| fd)
    }
}

/// What drivers' exports are. Most use the DRM core's exporter, but those who do not are not few.
fn traits_of(driver: &str) -> Traits {
    let known = |dynamic, residence| Traits {
        dynamic: Some(dynamic),
        mmap: Some(true),
        moves: Some(dynamic),
        residence: Some(residence),
    };
    match driver {
        // pinned by the first attach, which moves i915's to host memory
        "vgem" | "i915" => known(false, Residence::Host),
        "amdgpu" | "xe" => known(true, Residence::Device),
        _ => Traits::default(),
    }
}

impl Provider for DrmNode {
    fn name(&self) -> &str {
        &self.name
    }
    fn traits(&self) -> Traits {
        traits_of(&self.driver)
    }
    fn address(&self) -> Option<pcie::Address> {
        None
    }
    fn alloc(&self, len: u64) -> Result<Box<dyn Memory>, Error> {
        Ok(Box::new(Exported::new(self.create(whole_pages(len)?)?, len)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_without_nodes_says_what_to_do() {
        let error = DrmNode::all(Path::new("/nonexistent")).err().unwrap();
        assert!(error.to_string().contains("modprobe vgem"), "{error}");
        assert_eq!(error.errno(), libc::ENOENT);
    }

    #[test]
    fn what_is_no_node_is_refused() {
        let error = DrmNode::open("/dev/null").err().unwrap();
        assert_eq!(error, Error::System("DRM_IOCTL_VERSION", Errno::NOTTY));
    }

    #[test]
    fn an_unknown_driver_claims_nothing() {
        assert_eq!(traits_of("nobodys"), Traits::default());
        assert_eq!(traits_of("xe").dynamic, Some(true));
    }
}
