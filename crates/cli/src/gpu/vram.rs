//! The demo's GPU: the platform's first one on the near side, its last one on the far side, as a
//! software GPU whose exports the library finds through the registry. Its memory may be of another
//! provider's instead.

use crate::args::demo::{ProviderKind, Side};
use crate::console::failure::{Context, Failure, Outcome};
use gpu::providers::Kind;
use gpu::{Memory, Provider, SoftwareGpu};
use pcie::{Platform, Role};
use registry::Client;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// A side's GPU.
pub struct Gpu {
    name: String,
    number: u32,
    provider: Box<dyn Provider>,
}

/// A buffer in its memory, exported.
pub struct Vram {
    memory: Box<dyn Memory>,
    fd: OwnedFd,
}

impl Gpu {
    /// The GPU of a side, with memory of a provider's.
    pub fn open(side: Side, platform: &Platform, provider: ProviderKind) -> Outcome<Gpu> {
        let mut gpus = (0..).zip(platform.with_role(Role::Gpu));
        let function = match side {
            Side::Near => gpus.next(),
            Side::Far => gpus.last(),
        };
        let (number, function) = function.ok_or_else(|| {
            Failure::new("the platform has no GPU")
                .because("no [[function]] has role = \"gpu\"")
                .remedy(crate::surroundings::tree::FORM)
        })?;
        let provider = match provider.machines() {
            Some(kind) => machines(kind)?,
            None => {
                let client = Client::connect(registry::Role::Member);
                let client = client.what("cannot join the registry")?;
                Box::new(SoftwareGpu::of(function, client).what("cannot make a GPU")?)
            }
        };
        Ok(Gpu { name: function.name.clone(), number, provider })
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
        let what = || format!("cannot use {len} bytes of the memory of {}", self.provider.name());
        let memory = self.provider.alloc(len).what(what()).map_err(|failure| {
            failure.remedy("ask for less, or name a platform whose GPU has more (--platform)")
        })?;
        let fd = memory.export().what(what())?;
        Ok(Vram { memory, fd })
    }
}

/// The first of a kind that works here.
fn machines(kind: Kind) -> Outcome<Box<dyn Provider>> {
    let mut why = Vec::new();
    for opened in kind.open() {
        match opened {
            Ok(provider) => return Ok(provider),
            Err(error) => why.push(error),
        }
    }
    let failure = Failure::new(format_args!("provider {kind} does not work here"));
    Err(why
        .into_iter()
        .fold(failure, Failure::because)
        .remedy("`peerdma gpu providers` shows those that do"))
}

impl Vram {
    /// The dma-buf.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Copies to the GPU.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Outcome<()> {
        self.memory.write(at, bytes).what("cannot write GPU memory")
    }

    /// Copies from the GPU.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Outcome<()> {
        self.memory.read(at, bytes).what("cannot read GPU memory")
    }

    /// BLAKE3 of the whole buffer, in hexadecimal.
    pub fn hash(&self) -> Outcome<String> {
        let digest = self.memory.hash().what("the GPU's memory cannot be hashed")?;
        Ok(digest.to_string())
    }
}
