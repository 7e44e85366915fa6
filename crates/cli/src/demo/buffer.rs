//! A registered buffer of the demo, of any kind of memory that a region can be over.

use crate::args::demo::MemoryKind;
use crate::console::failure::{self, Context, Outcome};
use crate::gpu::vram::{Gpu, Vram};
use peerdma::{Access, Dmabuf, HostBuffer, LocalSlice, MappedBuffer, Mr, Pd, RemoteSlice};
use std::ops::Range;
use std::os::fd::AsRawFd;

/// Bytes taken at once.
const CHUNK: u64 = 1 << 20;
/// Bytes of the smallest page.
const PAGE: usize = 4096;

/// Memory and its region.
pub enum Buffer {
    /// A dma-buf of the GPU's.
    Dmabuf(Vram, Mr<Dmabuf>),
    /// The GPU's memory by its address.
    Peer(Vram, Mr<MappedBuffer>),
    /// Host memory.
    Host(Mr<HostBuffer>),
}

impl Buffer {
    /// Allocates `size` bytes and registers them.
    pub fn new(kind: MemoryKind, gpu: &Gpu, pd: &Pd, size: u64) -> Outcome<Buffer> {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let refused = |error| {
            failure::verbs(error).because(format_args!("registering {size} bytes of {kind} memory"))
        };
        match kind {
            MemoryKind::Dmabuf | MemoryKind::DmabufPinned => {
                let vram = gpu.allocate(size)?;
                let mr = pd.reg_dmabuf(vram.fd(), 0, size, 0, access).map_err(refused)?;
                Ok(Buffer::Dmabuf(vram, mr))
            }
            MemoryKind::DmabufDataDirect => {
                let vram = gpu.allocate(size)?;
                let mr = pd.reg_dmabuf_data_direct(vram.fd(), 0, size, 0, access);
                Ok(Buffer::Dmabuf(vram, mr.map_err(refused)?))
            }
            MemoryKind::Peer => {
                let vram = gpu.allocate(size)?;
                let mapped = MappedBuffer::new(vram.fd(), size).map_err(failure::verbs)?;
                Ok(Buffer::Peer(vram, pd.reg(mapped, access).map_err(refused)?))
            }
            MemoryKind::Host | MemoryKind::Odp | MemoryKind::DevicePrivate => {
                let len = usize::try_from(size).what("this machine cannot address so much")?;
                let memory = HostBuffer::new(len).map_err(failure::verbs)?;
                let on_demand = match kind {
                    MemoryKind::Host => Access::empty(),
                    _ => Access::ON_DEMAND,
                };
                Ok(Buffer::Host(pd.reg(memory, access | on_demand).map_err(refused)?))
            }
        }
    }

    /// Has every page, and has it in the GPU.
    pub fn migrate(&self, gpu: &Gpu) -> Outcome<()> {
        let Buffer::Host(mr) = self else { return Ok(()) };
        for at in (0..self.len()).step_by(PAGE) {
            let mut byte = [0];
            self.read(at, &mut byte)?;
            self.write(at, &byte)?;
        }
        mr.migrate_to_gpu(gpu.number()).map_err(failure::verbs)?;
        Ok(())
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Buffer::Dmabuf(_, mr) => mr.len(),
            Buffer::Peer(_, mr) => mr.len(),
            Buffer::Host(mr) => mr.len(),
        }
    }

    /// Descriptor of the GPU's memory.
    pub fn fd(&self) -> Option<i32> {
        match self {
            Buffer::Dmabuf(vram, _) | Buffer::Peer(vram, _) => Some(vram.fd().as_raw_fd()),
            Buffer::Host(_) => None,
        }
    }

    /// Local key and remote key.
    pub fn keys(&self) -> (u32, u32) {
        match self {
            Buffer::Dmabuf(_, mr) => (mr.lkey(), mr.rkey()),
            Buffer::Peer(_, mr) => (mr.lkey(), mr.rkey()),
            Buffer::Host(mr) => (mr.lkey(), mr.rkey()),
        }
    }

    /// Bytes for a local work request.
    pub fn slice(&self, range: Range<u64>) -> peerdma::Result<LocalSlice<'_>> {
        match self {
            Buffer::Dmabuf(_, mr) => mr.slice(range),
            Buffer::Peer(_, mr) => mr.slice(range),
            Buffer::Host(mr) => mr.slice(range),
        }
    }

    /// The whole, for the other side.
    pub fn remote(&self) -> RemoteSlice {
        match self {
            Buffer::Dmabuf(_, mr) => mr.remote(),
            Buffer::Peer(_, mr) => mr.remote(),
            Buffer::Host(mr) => mr.remote(),
        }
    }

    /// Copies in; by the GPU, where it is the GPU's.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Outcome<()> {
        match self {
            Buffer::Dmabuf(vram, _) | Buffer::Peer(vram, _) => vram.write(at, bytes),
            Buffer::Host(mr) => mr.write(at, bytes).map_err(failure::verbs),
        }
    }

    /// Copies out.
    pub fn read(&self, at: u64, bytes: &mut [u8]) -> Outcome<()> {
        match self {
            Buffer::Dmabuf(vram, _) | Buffer::Peer(vram, _) => vram.read(at, bytes),
            Buffer::Host(mr) => mr.read(at, bytes).map_err(failure::verbs),
        }
    }

    /// BLAKE3 of the whole, in hexadecimal; by the GPU, where it is the GPU's.
    pub fn hash(&self) -> Outcome<String> {
        if let Buffer::Dmabuf(vram, _) | Buffer::Peer(vram, _) = self {
            return vram.hash();
        }
        let mut hasher = blake3::Hasher::new();
        let mut chunk = vec![0; CHUNK as usize];
        for range in chunks(self.len()) {
            let chunk = &mut chunk[..(range.end - range.start) as usize];
            self.read(range.start, chunk)?;
            hasher.update(chunk);
        }
        Ok(hasher.finalize().to_hex().to_string())
    }

    /// Offset of the first byte in which two buffers of one length differ.
    pub fn first_difference(&self, other: &Buffer) -> Outcome<Option<u64>> {
        let (mut a, mut b) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
        for range in chunks(self.len()) {
            let len = (range.end - range.start) as usize;
            self.read(range.start, &mut a[..len])?;
            other.read(range.start, &mut b[..len])?;
            if let Some(place) = (0..len).find(|&place| a[place] != b[place]) {
                return Ok(Some(range.start + place as u64));
            }
        }
        Ok(None)
    }
}

fn chunks(len: u64) -> impl Iterator<Item = Range<u64>> {
    (0..len.div_ceil(CHUNK)).map(move |chunk| chunk * CHUNK..len.min((chunk + 1) * CHUNK))
}
