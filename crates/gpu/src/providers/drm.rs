//! Memory of the nodes below `/dev/dri`, exported by PRIME (`drivers/gpu/drm/drm_prime.c`): a GPU's
//! own, through its render node, where the driver's request for it is known here, else dumb buffers
//! (`drm_dumb_buffers.c`) of a primary node: vgem's, or a graphics card's.

use super::exported::{Exported, whole_pages};
use super::ioctl::{CreateDumb, DestroyDumb, PrimeHandle, Request, answered, drm_driver, open};
use super::vram::{self, Vram};
use crate::{Error, Memory, Provider, Residence, Traits};
use pcie::Address;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::ops::Range;
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

/// Numbers in the names of primary nodes, and of render nodes.
const PRIMARY: Range<u32> = 0..64;
const RENDER: Range<u32> = 128..192;

/// A node that allocates.
pub struct DrmNode {
    name: String,
    driver: String,
    address: Option<Address>,
    /// How the device's own memory is had; without it buffers are dumb.
    vram: Option<Vram>,
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
        let vram = Vram::of(&driver, &node)?;
        let address = rustix::fs::fstat(&node).ok().and_then(|stat| address(&stat));
        Ok(DrmNode { name: format!("{driver} at {path}"), driver, address, vram, node })
    }

    /// The nodes in a folder that allocate, each opened: the render nodes of GPUs whose own memory
    /// can be had, and the primary nodes of all other devices, lowest first.
    ///
    /// # Errors
    /// [`Error::NoNode`] for the first, where there is none.
    pub fn all(folder: &Path) -> Result<Vec<Result<DrmNode, Error>>, Error> {
        let path = |name: &str, minor: u32| format!("{}/{name}{minor}", folder.display());
        let existing = |name: &'static str, minors: Range<u32>| {
            let nodes = minors.map(move |minor| path(name, minor));
            nodes.filter_map(|path| Some((rustix::fs::stat(path.as_str()).ok()?, path)))
        };
        let (rendering, closed): (Vec<_>, Vec<_>) = existing("renderD", RENDER)
            .map(|(_, path)| DrmNode::open(&path))
            .partition(|node| node.is_ok());
        let rendering: Vec<DrmNode> =
            rendering.into_iter().flatten().filter(|node| node.vram.is_some()).collect();
        let known: Vec<Address> = rendering.iter().filter_map(|node| node.address).collect();
        let is_known =
            |stat: &rustix::fs::Stat| address(stat).is_some_and(|at| known.contains(&at));
        let primary = existing("card", PRIMARY).filter(|(stat, _)| !is_known(stat));
        let primary: Vec<_> = primary.map(|(_, path)| DrmNode::open(&path)).collect();
        let mut found: Vec<_> = rendering.into_iter().map(Ok).chain(primary).collect();
        if found.is_empty() {
            // a container may have render nodes alone
            found = closed;
        }
        if found.is_empty() {
            let path = format!("{}/card0", folder.display());
            return Err(Error::NoNode { path, errno: Errno::NOENT, remedy: REMEDY });
        }
        Ok(found)
    }

    /// A buffer of at least `size` bytes; its dma-buf.
    fn create(&self, size: u64) -> Result<OwnedFd, Error> {
        let Some(vram) = self.vram else { return self.create_dumb(size) };
        let handle = vram.create(&self.node, size)?;
        let exported = self.export(handle);
        // The dma-buf holds the buffer; the handle was needed for the export only.
        let closed = vram::close(&self.node, handle);
        let exported = exported?;
        closed.map(|()| exported)
    }

    fn create_dumb(&self, size: u64) -> Result<OwnedFd, Error> {
        let height = u32::try_from(size.div_ceil(LINE)).map_err(|_| Error::BadLength(size))?;
        let mut dumb = CreateDumb { height, width: 1024, bpp: 32, ..CreateDumb::default() };
        CREATE.make(&self.node, &mut dumb)?;
        let exported = self.export(dumb.handle);
        let destroyed = DESTROY.make(&self.node, &mut DestroyDumb { handle: dumb.handle });
        let exported = exported?;
        destroyed.map(|_| exported)
    }

    fn export(&self, handle: u32) -> Result<OwnedFd, Error> {
        let flags = (OFlags::RDWR | OFlags::CLOEXEC).bits();
        let mut prime = PrimeHandle { handle, flags, fd: -1 };
        EXPORT.make(&self.node, &mut prime)?;
        Ok(answered(prime.fd))
    }
}

/// The PCI function of a node: the name of the device that its number belongs to.
fn address(stat: &rustix::fs::Stat) -> Option<Address> {
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let link = rustix::fs::readlink(format!("/sys/dev/char/{major}:{minor}/device"), []).ok()?;
    link.to_str().ok()?.rsplit('/').next()?.parse().ok()
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
        "amdgpu" | "xe" | "peerdma_gpu" => known(true, Residence::Device),
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
    /// Only of a node that gives the GPU's own memory: others' buffers are the host's, and say
    /// nothing of the way to the GPU.
    fn address(&self) -> Option<Address> {
        self.address.filter(|_| self.vram.is_some())
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
