//! Memory of a GPU itself by its driver's own request, on a node that anybody may compute on
//! (`include/uapi/drm/amdgpu_drm.h`, `xe_drm.h`, `peerdma_gpu_drm.h`). The DRM core has no request
//! for it: its dumb buffers are for pictures, and mostly in the host's memory.

use super::ioctl::{AmdgpuGemCreate, GemClose, Request, XeGemCreate, xe_regions};
use crate::Error;
use std::os::fd::OwnedFd;

const AMDGPU: Request<AmdgpuGemCreate> =
    Request::read_write("DRM_IOCTL_AMDGPU_GEM_CREATE", b'd', 0x40);
const PGPU: Request<AmdgpuGemCreate> = Request::read_write("DRM_IOCTL_PGPU_CREATE", b'd', 0x40);
const XE: Request<XeGemCreate> = Request::read_write("DRM_IOCTL_XE_GEM_CREATE", b'd', 0x41);
const CLOSE: Request<GemClose> = Request::write("DRM_IOCTL_GEM_CLOSE", b'd', 0x09);

/// `AMDGPU_GEM_DOMAIN_VRAM`, `PGPU_VRAM`.
const VRAM: u64 = 4;
/// `AMDGPU_GEM_CREATE_CPU_ACCESS_REQUIRED`: within the BAR, where peers reach it too.
const AMDGPU_IN_BAR: u64 = 1;
/// `DRM_XE_GEM_CREATE_FLAG_NEEDS_VISIBLE_VRAM`: the same.
const XE_IN_BAR: u32 = 1 << 2;
/// `DRM_XE_GEM_CPU_CACHING_WC`, which such memory must have.
const XE_WRITE_COMBINED: u16 = 2;
/// `DRM_XE_MEM_REGION_CLASS_VRAM`.
const XE_VRAM: u16 = 1;

/// A driver's way to allocate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Vram {
    Amdgpu,
    /// The virtual GPU's, which takes the same structure.
    Pgpu,
    /// Takes memory of this mask, in pieces of this length.
    Xe {
        placement: u32,
        piece: u64,
    },
}

impl Vram {
    /// That of a node's driver, if the device has memory of its own and the driver is known here.
    pub(super) fn of(driver: &str, node: &OwnedFd) -> Result<Option<Vram>, Error> {
        Ok(match driver {
            "amdgpu" => Some(Vram::Amdgpu),
            "peerdma_gpu" => Some(Vram::Pgpu),
            "xe" => {
                let regions = xe_regions(node)?.into_iter();
                let mut own = regions.filter(|region| region.class == XE_VRAM);
                own.find_map(|region| {
                    let placement = 1u32.checked_shl(region.instance.into())?;
                    Some(Vram::Xe { placement, piece: region.min_page_size.max(1).into() })
                })
            }
            _ => None,
        })
    }

    /// Allocates at least `size` bytes; the handle.
    pub(super) fn create(self, node: &OwnedFd, size: u64) -> Result<u32, Error> {
        let amdgpu = |request: Request<AmdgpuGemCreate>, flags| {
            let mut create =
                AmdgpuGemCreate { size_or_handle: size, alignment: 0, domains: VRAM, flags };
            request.make(node, &mut create)?;
            // the handle is a __u32 at its start, beside padding
            Ok((create.size_or_handle & u64::from(u32::MAX)) as u32)
        };
        match self {
            Vram::Amdgpu => amdgpu(AMDGPU, AMDGPU_IN_BAR),
            Vram::Pgpu => amdgpu(PGPU, 0),
            Vram::Xe { placement, piece } => {
                let size = size.checked_next_multiple_of(piece).ok_or(Error::BadLength(size))?;
                let mut create = XeGemCreate::default();
                (create.size, create.placement) = (size, placement);
                (create.flags, create.cpu_caching) = (XE_IN_BAR, XE_WRITE_COMBINED);
                XE.make(node, &mut create)?;
                Ok(create.handle)
            }
        }
    }
}

/// Gives a handle back.
pub(super) fn close(node: &OwnedFd, handle: u32) -> Result<(), Error> {
    CLOSE.make(node, &mut GemClose { handle, pad: 0 }).map(drop)
}
