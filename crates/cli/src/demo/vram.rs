//! The demo's view of a GPU: video memory that is exported as a dma-buf, and three kernels over it.

use crate::args::Side;
use crate::failure::{Context, Failure, Outcome};
use dmabuf::{Control, Placement};
use pcie::{Platform, Role};
use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

pub struct Gpu {
    name: String,
    address: pcie::Address,
    registry: Arc<registry::Client>,
    next: u64,
}

pub struct Vram {
    file: File,
    len: u64,
    _control: Control,
}

impl Gpu {
    pub fn open(side: Side) -> Outcome<Gpu> {
        let platform = match std::env::var_os("PEERDMA_PLATFORM") {
            Some(path) => Platform::from_file(path.as_ref()).what("cannot read the platform")?,
            None => Platform::default(),
        };
        let gpus: Vec<_> = platform.with_role(Role::Gpu).collect();
        let gpu = match side {
            Side::Near => gpus.first(),
            Side::Far => gpus.last(),
        };
        let gpu = gpu.ok_or_else(|| Failure::new("the platform has no GPU"))?;
        let registry =
            registry::Client::connect(registry::Role::Member).what("cannot join the registry")?;
        Ok(Gpu {
            name: gpu.name.clone(),
            address: gpu.address,
            registry,
            next: u64::from(std::process::id()) << 32,
        })
    }
    pub fn name(&self) -> &str {
        &self.name
    }
    pub fn allocate(&mut self, len: u64) -> Outcome<Vram> {
        self.next += 1;
        let id = self.next;
        let fd = rustix::fs::memfd_create(
            dmabuf::memfd_name(id),
            MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING,
        )
        .what("memfd")?;
        let rounded = len.next_multiple_of(4096);
        rustix::fs::ftruncate(&fd, rounded).what("ftruncate")?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK).what("seal")?;
        let control = Control::create(id, self.address, Placement::Vram).what("control")?;
        self.registry.publish(&format!("dmabuf-{id:016x}"), control.as_fd()).what("publish")?;
        Ok(Vram { file: File::from(fd), len, _control: control })
    }
}

impl Vram {
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
    pub fn len(&self) -> u64 {
        self.len
    }
    pub fn write(&self, at: u64, bytes: &[u8]) -> Outcome<()> {
        self.file.write_all_at(bytes, at).what("cannot write video memory")
    }
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Outcome<()> {
        self.file.read_exact_at(bytes, at).what("cannot read video memory")
    }
    pub fn hash(&self) -> Outcome<String> {
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; 1 << 20];
        let mut at = 0;
        while at < self.len {
            let n = (self.len - at).min(1 << 20) as usize;
            self.read(at, &mut chunk[..n])?;
            hasher.update(&chunk[..n]);
            at += n as u64;
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
    pub fn first_difference(&self, other: &Vram) -> Outcome<Option<u64>> {
        let (mut a, mut b) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        let mut at = 0;
        while at < self.len {
            let n = (self.len - at).min(1 << 20) as usize;
            self.read(at, &mut a[..n])?;
            other.read(at, &mut b[..n])?;
            if let Some(i) = (0..n).find(|&i| a[i] != b[i]) {
                return Ok(Some(at + i as u64));
            }
            at += n as u64;
        }
        Ok(None)
    }
}
