//! The command `demo`, and the command line of the process that is one of its sides.

use super::device::Device;
use super::values;
use clap::{Args, Parser};
use std::path::PathBuf;

/// First argument of a process that is one side of the demo.
pub const DEMO_PEER: &str = "demo-peer";

/// Prove that GPU memory crosses between two processes by RDMA.
///
/// Two processes start, each with its own software GPU. The first loads a file into its video
/// memory. Both export video memory as dma-buf descriptors and register them with the embedded
/// libibverbs. The file crosses by RDMA WRITE into the far GPU, which hashes it, and comes back by
/// RDMA READ into a second buffer, which is compared with the first.
#[derive(Args, Debug, Clone)]
#[command(after_help = "\
Examples:
  peerdma demo
  peerdma demo --file /usr/bin/gdb
  peerdma demo --memory peer
  sudo peerdma demo --provider udmabuf
  peerdma demo --memory dmabuf-data-direct --platform grace
  peerdma demo --size 256M --json | jq .write.bytes_per_second
  peerdma demo --trace demo.pcap --size 64K")]
pub struct Demo {
    /// The file to send (default: this program's executable)
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// How much: the file's first N bytes, repeated if it is shorter. K, M and G mean KiB, MiB and
    /// GiB
    #[arg(long, value_name = "N", value_parser = values::parse_size)]
    pub size: Option<u64>,
    /// What kind of memory, and how it is registered
    #[arg(long, value_enum, value_name = "KIND", default_value_t)]
    pub memory: MemoryKind,
    /// Whose dma-bufs: a software GPU's, or this machine's own (see `peerdma gpu providers`)
    #[arg(long, value_enum, value_name = "NAME", default_value_t)]
    pub provider: ProviderKind,
    /// Which of the platform's HCAs each side takes
    #[arg(long, value_enum, value_name = "WHICH", default_value_t)]
    pub hca: HcaChoice,
    /// As a JSON object
    #[arg(long)]
    pub json: bool,
    /// The device.
    #[command(flatten)]
    pub device: Device,
    /// Flip one byte in the far video memory, to see the demo fail
    #[arg(long, hide = true)]
    pub corrupt: bool,
}

/// One side of the demo: a command line of its own, so that completions and help do not show it.
#[derive(Parser, Debug)]
#[command(name = DEMO_PEER)]
pub struct DemoPeer {
    /// Which side
    #[arg(long, value_enum)]
    pub side: Side,
    /// The file to send
    #[arg(long)]
    pub file: PathBuf,
    /// Bytes to send
    #[arg(long)]
    pub size: u64,
    /// Kind of memory
    #[arg(long, value_enum)]
    pub memory: MemoryKind,
    /// Whose dma-bufs
    #[arg(long, value_enum)]
    pub provider: ProviderKind,
    /// Which HCA
    #[arg(long, value_enum, default_value_t)]
    pub hca: HcaChoice,
    /// Flip one byte
    #[arg(long)]
    pub corrupt: bool,
}

/// Which HCA a side of the demo takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum HcaChoice {
    /// The one nearest to its GPU
    #[default]
    Nearest,
    /// The one farthest from it
    Farthest,
}

impl std::fmt::Display for HcaChoice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            HcaChoice::Nearest => "nearest",
            HcaChoice::Farthest => "farthest",
        })
    }
}

/// Memory of the demo, by the way in which it is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum MemoryKind {
    /// GPU memory exported as a dma-buf, which may move while it is registered
    #[default]
    Dmabuf,
    /// The same, pinned where it is
    DmabufPinned,
    /// The same, reached by the HCA's Data Direct function instead of the HCA's own
    DmabufDataDirect,
    /// GPU memory registered by its address (Peer-Direct)
    Peer,
    /// Host memory whose pages are brought in on demand
    Odp,
    /// The same, migrated to the GPU: its pages are reached there, or brought home
    DevicePrivate,
    /// Host memory
    Host,
}

impl MemoryKind {
    /// Whether it is registered as a dma-buf.
    pub fn is_dmabuf(self) -> bool {
        use MemoryKind::{Dmabuf, DmabufDataDirect, DmabufPinned};
        matches!(self, Dmabuf | DmabufPinned | DmabufDataDirect)
    }
}

impl std::fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            MemoryKind::Dmabuf => "dmabuf",
            MemoryKind::DmabufPinned => "dmabuf-pinned",
            MemoryKind::DmabufDataDirect => "dmabuf-data-direct",
            MemoryKind::Peer => "peer",
            MemoryKind::Odp => "odp",
            MemoryKind::DevicePrivate => "device-private",
            MemoryKind::Host => "host",
        })
    }
}

/// Who makes dma-bufs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum ProviderKind {
    /// The platform's GPUs, in software
    #[default]
    Software,
    /// Pages of a memfd, by /dev/udmabuf
    Udmabuf,
    /// The kernel's pages, by /dev/dma_heap/system
    DmaHeap,
    /// Dumb buffers of the first card below /dev/dri that makes them
    Drm,
    /// An NVIDIA GPU's memory, by CUDA's driver
    Cuda,
}

impl ProviderKind {
    /// The machine's own, `None` for the software GPUs.
    pub fn machines(self) -> Option<gpu::providers::Kind> {
        use gpu::providers::Kind;
        match self {
            ProviderKind::Software => None,
            ProviderKind::Udmabuf => Some(Kind::Udmabuf),
            ProviderKind::DmaHeap => Some(Kind::DmaHeap),
            ProviderKind::Drm => Some(Kind::Drm),
            ProviderKind::Cuda => Some(Kind::Cuda),
        }
    }
}

impl std::fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.machines() {
            Some(kind) => kind.fmt(f),
            None => f.pad("software"),
        }
    }
}

/// The demo's memory: how it is registered, and who makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// How it is registered.
    pub kind: MemoryKind,
    /// Who makes it, where it is a dma-buf.
    pub provider: ProviderKind,
}

impl Memory {
    /// Whether it is a GPU's on the platform. Where the machine's own exporters keep theirs, user
    /// space is not told; it counts as the host's.
    pub fn is_gpus(self) -> bool {
        let is_host = matches!(self.kind, MemoryKind::Host | MemoryKind::Odp);
        !is_host && self.provider == ProviderKind::Software
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.provider {
            ProviderKind::Software => self.kind.fmt(f),
            provider => write!(f, "{} of {provider}", self.kind),
        }
    }
}

/// Side of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Side {
    /// Holds the file, writes and reads.
    Near,
    /// Receives and hashes.
    Far,
}
