//! The demo's GPU: the platform's first one on the near side, its last one on the far side, as a software GPU whose exports
//! the library finds through the registry.

use crate::args::Side;
use crate::failure::{Context, Failure, Outcome};
use gpu::{Buffer, SoftwareGpu};
use pcie::{Platform, Role};
use registry::Client;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A side's GPU.
pub struct Gpu {
    name: String,
    number: u32,
    gpu: SoftwareGpu,
}

/// A buffer in its memory, exported.
pub struct Vram {
    buffer: Buffer,
    fd: OwnedFd,
}

impl Gpu {
    /// The GPU of a side.
    pub fn open(side: Side, platform: &Platform) -> Outcome<Gpu> {
        let mut gpus = (0..).zip(platform.with_role(Role::Gpu));
        let function = match side {
            Side::Near => gpus.next(),
            Side::Far => gpus.last(),
        };
        let (number, function) = function.ok_or_else(|| {
            Failure::new("the platform has no GPU")
                .because("no [[function]] has role = \"gpu\"")
                .remedy(crate::tree::FORM)
        })?;
        let client = Client::connect(registry::Role::Member).what("cannot join the registry")?;
        let gpu = SoftwareGpu::of(function, client).what("cannot make a GPU")?;
        Ok(Gpu { name: function.name.clone(), number, gpu })
    }

    /// Which GPU of the platform it is, from 0 on.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its name on the platform.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Allocates and exports `len` bytes.
    pub fn allocate(&self, len: u64) -> Outcome<Vram> {
        let what = || format!("cannot use {len} bytes of the memory of {}", self.name);
        let buffer = self
            .gpu
            .alloc(len)
            .what(what())
            .map_err(|failure| failure.remedy("send less with --size"))?;
        let fd = buffer.export().what(what())?;
        Ok(Vram { buffer, fd })
    }
}

impl Vram {
    /// The dma-buf.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.buffer.len()
    }

    /// Copies to the GPU.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Outcome<()> {
        self.buffer.write(at, bytes).what("cannot write GPU memory")
    }

    /// Copies from the GPU.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Outcome<()> {
        self.buffer.read(at, bytes).what("cannot read GPU memory")
    }

    /// BLAKE3 of the whole buffer, in hexadecimal.
    pub fn hash(&self) -> Outcome<String> {
        let digest = self.buffer.hash(0, self.len()).what("the GPU cannot hash its memory")?;
        Ok(digest.to_string())
    }
}
