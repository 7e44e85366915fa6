//! Providers beside the software GPU: what this machine's kernel and drivers export as dma-bufs.
//! Each tells what it is as its driver has it; whether it works here only a trial shows
//! ([`Kind::open`]).

mod cuda;
mod cuda_driver;
mod dma_heap;
mod drm;
mod exported;
mod ioctl;
mod udmabuf;
mod vram;

use crate::{Error, Provider, Traits};
use std::path::Path;

pub use cuda::CudaGpu;
pub use dma_heap::DmaHeap;
pub use drm::DrmNode;
pub use exported::Exported;
pub use udmabuf::Udmabuf;

/// A provider that works here, or why not.
pub type Opened = Result<Box<dyn Provider>, Error>;

/// A provider of the machine's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Pages of a memfd, by `/dev/udmabuf`.
    Udmabuf,
    /// Pages of the kernel's, by `/dev/dma_heap/system`.
    DmaHeap,
    /// A GPU's memory, or dumb buffers, of a node below `/dev/dri`, by PRIME.
    Drm,
    /// Memory of an NVIDIA GPU, by `cuMemGetHandleForAddressRange`.
    Cuda,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 4] = [Kind::Udmabuf, Kind::DmaHeap, Kind::Drm, Kind::Cuda];

    /// What its exports are as far as that does not depend on a device.
    pub fn traits(self) -> Traits {
        match self {
            Kind::Udmabuf => Udmabuf::TRAITS,
            Kind::DmaHeap => DmaHeap::TRAITS,
            Kind::Drm => Traits::default(),
            Kind::Cuda => CudaGpu::TRAITS,
        }
    }

    /// Those of the machine, each tried: a page is allocated and exported. At least one result.
    pub fn open(self) -> Vec<Opened> {
        fn one<P: Provider + 'static>(provider: Result<P, Error>) -> Opened {
            let provider = provider?;
            provider.alloc(mm::page_size())?.export()?;
            Ok(Box::new(provider))
        }
        match self {
            Kind::Udmabuf => vec![one(Udmabuf::open())],
            Kind::DmaHeap => vec![one(DmaHeap::system())],
            Kind::Drm => all(DrmNode::all(Path::new("/dev/dri")), one),
            Kind::Cuda => all(CudaGpu::all(CudaGpu::LIBRARY), one),
        }
    }
}

fn all<P>(
    found: Result<Vec<Result<P, Error>>, Error>,
    each: fn(Result<P, Error>) -> Opened,
) -> Vec<Opened> {
    match found {
        Ok(found) => found.into_iter().map(each).collect(),
        Err(error) => vec![Err(error)],
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Kind::Udmabuf => "udmabuf",
            Kind::DmaHeap => "dma-heap",
            Kind::Drm => "drm",
            Kind::Cuda => "cuda",
        })
    }
}
