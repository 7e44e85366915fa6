//! What shapes the device that a program sees: the options that `run`, `env` and `demo` share.

use super::values;
use clap::Args;
use std::path::PathBuf;

/// What shapes the device a program sees.
#[derive(Args, Debug, Default, Clone)]
pub struct Device {
    /// The machine's PCIe tree, which says what GPU an HCA reaches, and how: a name of
    /// `peerdma platforms`, or a file
    #[arg(long, value_name = "NAME|FILE")]
    pub platform: Option<PathBuf>,
    /// What the device shows itself as: a ConnectX has the vendor's identity, and what `mlx5dv.h`
    /// offers of memory keys and Data Direct
    #[arg(long, value_enum, value_name = "MODEL", default_value_t)]
    pub model: Model,
    /// How programs reach the platform's GPUs, beside their nodes below /dev/dri: `cuda` shows them
    /// CUDA's driver library, its runtime and NVML, with memory, streams and all that surrounds it,
    /// but no kernels
    #[arg(long, value_enum, value_name = "INTERFACE", default_value_t)]
    pub gpu: GpuInterface,
    /// Pace the PCIe links of the platform to their rates, or to this fraction of them
    #[arg(long, value_name = "FRACTION", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = values::fraction)]
    pub pace: Option<f64>,
    /// How programs reach each other on this host: through memory where they can agree on it, or
    /// by packets as on a network
    #[arg(long, value_enum, value_name = "WAY", default_value_t)]
    pub link: Link,
    /// Append the packets to a file that Wireshark reads; several programs may share it
    #[arg(long, value_name = "FILE.pcap")]
    pub trace: Option<PathBuf>,
    /// Whether registered memory counts against the limit on locked memory (`ulimit -l`), as it
    /// does on a real device
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub memlock: Memlock,
    /// Let the library say on stderr what it refuses, and why
    #[arg(long)]
    pub log: bool,
    /// Use this build of the library instead of the embedded one
    #[arg(long, value_name = "libibverbs.so", env = "PEERDMA_LIBRARY", hide = true)]
    pub library: Option<PathBuf>,
}

/// What a program takes the device for.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Model {
    /// A software device, which belongs to no vendor
    #[default]
    Software,
    /// A ConnectX-8
    Connectx,
}

/// How programs reach GPUs.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum GpuInterface {
    /// By their nodes below /dev/dri only
    #[default]
    Drm,
    /// By NVIDIA's libcuda.so.1, libcudart.so.12 and .13, and libnvidia-ml.so.1 too
    Cuda,
}

/// How programs reach each other on one host.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Link {
    /// RDMA WRITEs and READs from memory to memory and what else a connection sends through shared
    /// memory, where both ends can agree on it; the rest by packets
    #[default]
    Auto,
    /// As auto; where Yama asks a program whom it lets at its memory (ptrace_scope 1), all programs
    /// of the user and not the first one that it is connected to
    Local,
    /// Everything by packets, as on a network; with --trace it is always so
    Roce,
}

/// What RLIMIT_MEMLOCK means to registrations.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Memlock {
    /// Nothing: the software HCA locks no memory
    #[default]
    Ignore,
    /// A registration beyond it fails as the kernel's does, unless the program has CAP_IPC_LOCK
    Enforce,
}
