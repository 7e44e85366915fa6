//! The commands for virtual machines: `connectx` and `vm`.

use super::values;
use clap::Args;
use std::net::IpAddr;
use std::path::PathBuf;

/// Serve a software ConnectX to a virtual machine, whose own drivers drive it.
///
/// QEMU 10.1 and later take it as a PCI function (`-device vfio-user-pci`), and stock Linux binds
/// mlx5_core and mlx5_ib to it. The adapter is on an InfiniBand subnet with the others of this user
/// in this network namespace. It is served to one machine after another, each of which finds it
/// reset, until a signal ends it.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma connectx --socket /tmp/cx8 &
  qemu-system-x86_64 -M q35,memory-backend=ram -m 2G \\
    -object memory-backend-memfd,id=ram,size=2G,share=on -device pcie-root-port,id=root \\
    -device '{\"driver\":\"vfio-user-pci\",\"bus\":\"root\",\
\"socket\":{\"type\":\"unix\",\"path\":\"/tmp/cx8\"}}' ...
  peerdma connectx --socket /tmp/cx8 --data-direct-socket /tmp/cx8-direct
  peerdma connectx --socket /tmp/cx8 --trace guest.pcap
  peerdma connectx --socket /tmp/cx8 --gpu-socket /tmp/gpu

The machine's memory must be shared (share=on), or every access to it is a message to QEMU.")]
pub struct Connectx {
    /// The UNIX socket to serve it on
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Serve its Data Direct function too, on this UNIX socket
    #[arg(long, value_name = "PATH")]
    pub data_direct_socket: Option<PathBuf>,
    /// The machine whose first HCA it is, and whose links its bytes take: a name of
    /// `peerdma platforms`, or a file
    #[arg(long, value_name = "NAME|FILE")]
    pub platform: Option<PathBuf>,
    /// Pace the PCIe links of the platform to their rates, or to this fraction of them
    #[arg(long, value_name = "FRACTION", num_args = 0..=1, require_equals = true,
          default_missing_value = "1", value_parser = values::fraction)]
    pub pace: Option<f64>,
    /// What its port is
    #[arg(long, value_enum, default_value_t)]
    pub port: Port,
    #[command(flatten)]
    pub allowed: Allowed,
    /// Append the packets to a file that Wireshark reads; several programs may share it
    #[arg(long, value_name = "FILE.pcap")]
    pub trace: Option<PathBuf>,
    /// Serve a virtual GPU too, on this UNIX socket
    #[arg(long, value_name = "PATH")]
    pub gpu_socket: Option<PathBuf>,
    /// MiB of the virtual GPU's memory, a power of two
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = values::power_of_two,
          requires = "gpu_socket")]
    pub gpu_memory: u32,
}

/// Boot a virtual machine with a software ConnectX, and run a command in it.
///
/// Its kernel is a stock one, with its own mlx5 drivers; its user space is this machine's
/// rdma-core, perftest and what else of that kind is installed here, and the command's own program.
/// A kernel, and a QEMU of 10.1 or later where this machine has none, are fetched from this
/// machine's Debian mirror into its cache, once. Needs no root.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma vm -- ibv_devinfo
  peerdma vm -- sh -c 'ibv_rc_pingpong & sleep 1; ibv_rc_pingpong localhost'
  peerdma vm -- ./my-program --its-option
  peerdma vm                  a shell in it; `poweroff -f`, or its end, ends the machine
  peerdma vm --print          QEMU's command line, for machines of your own

Exit status: the command's own; 1 when the machine cannot be started or ends before the command \
does.")]
pub struct Vm {
    /// MiB of memory
    #[arg(long, value_name = "MIB", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(256..))]
    pub memory: u32,
    /// MiB of a virtual GPU's memory, a power of two; its driver is built by this machine's gcc and
    /// make. 0 for no GPU
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = values::no_or_power_of_two)]
    pub gpu_memory: u32,
    /// Processors
    #[arg(long, value_name = "N", default_value_t = 2,
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub cpus: u32,
    /// Boot this kernel image instead of Debian's newest
    #[arg(long, value_name = "FILE", requires = "modules")]
    pub kernel: Option<PathBuf>,
    /// The kernel's modules, such as /lib/modules/VERSION
    #[arg(long, value_name = "FOLDER", requires = "kernel")]
    pub modules: Option<PathBuf>,
    /// What the adapter's port is
    #[arg(long, value_enum, default_value_t)]
    pub port: Port,
    #[command(flatten)]
    pub allowed: Allowed,
    /// Append the adapter's packets to a file that Wireshark reads
    #[arg(long, value_name = "FILE.pcap")]
    pub trace: Option<PathBuf>,
    /// Print the command line of a machine with an adapter served by `peerdma connectx`, and start
    /// nothing
    #[arg(long, conflicts_with_all = ["command", "trace"])]
    pub print: bool,
    /// The command and its arguments; without it, a shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

// What a guest may have of this host. No doc comment: clap would give it to the command.
#[derive(Args, Debug)]
pub struct Allowed {
    /// Let the guest have this address of this host too, so that programs here meet it there (may
    /// be given several times); without, it takes none
    #[arg(long = "address", value_name = "IP", value_parser = values::of_host)]
    pub addresses: Vec<IpAddr>,
    /// MiB that this process may take for what the guest makes it remember: objects, lists of pages
    /// and keys, rules. Beyond, the adapter has no resources. (Of time, one doorbell or command of
    /// the guest takes less than a second)
    #[arg(long, value_name = "MIB", default_value_t = 1024,
          value_parser = clap::value_parser!(u32).range(16..))]
    pub max_memory: u32,
}

/// What a port is on.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Port {
    /// An InfiniBand subnet of this user's adapters here
    #[default]
    Ib,
    /// An Ethernet of this user's adapters here, with RoCE v2
    Roce,
}
