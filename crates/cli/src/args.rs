//! The command line.

use clap::{Args, Parser, Subcommand};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

/// GPUDirect RDMA in user space: a software HCA that speaks RoCEv2 and appears to unmodified programs as libibverbs. It
/// needs no NIC, no GPU, no kernel module and no root.
#[derive(Parser, Debug)]
#[command(name = "peerdma", version, styles = crate::style::HELP, arg_required_else_help = true, after_help = "\
Examples:
  peerdma demo                          prove that GPU memory crosses by RDMA
  peerdma run -- ibv_devinfo            show the software HCA to a verbs program
  peerdma run -- ib_write_bw            ... a server in one terminal,
  peerdma run -- ib_write_bw 127.0.0.1  ... and its client in another
  eval \"$(peerdma env)\"                 the same for all programs of this shell
  peerdma topo                          which network adapter is near which GPU
  peerdma doctor                        which way from GPU to adapter works here
  peerdma vm -- ibv_devinfo             the same HCA in a virtual machine
  peerdma ps                            which processes have a device open
  peerdma top                           what they move, live")]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    Run(Run),
    Demo(Demo),
    Env(Env),
    Ps(Ps),
    Top(Top),
    Topo(Topo),
    Doctor(Doctor),
    Gpu(Gpu),
    Connectx(Connectx),
    Vm(Vm),
    Ctl(Ctl),
    Platforms(Platforms),
    /// Print a shell completion script
    #[command(after_help = "\
Examples:
  peerdma completions bash > ~/.local/share/bash-completion/completions/peerdma
  peerdma completions fish > ~/.config/fish/completions/peerdma.fish")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page
    #[command(after_help = "Example:\n  peerdma man | man -l -")]
    Man,
}

/// First argument of a process that is one side of the demo.
pub const DEMO_PEER: &str = "demo-peer";

/// What shapes the device a program sees.
#[derive(Args, Debug, Default, Clone)]
pub struct Device {
    /// The machine's PCIe tree, which says what GPU an HCA reaches, and how: a name of `peerdma platforms`, or a file
    #[arg(long, value_name = "NAME|FILE")]
    pub platform: Option<PathBuf>,
    /// What the device shows itself as: a ConnectX has the vendor's identity, and what `mlx5dv.h` offers of memory keys and
    /// Data Direct
    #[arg(long, value_enum, value_name = "MODEL", default_value_t)]
    pub model: Model,
    /// Pace the PCIe links of the platform to their rates, or to this fraction of them
    #[arg(long, value_name = "FRACTION", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = fraction)]
    pub pace: Option<f64>,
    /// Append the packets to a file that Wireshark reads; several programs may share it
    #[arg(long, value_name = "FILE.pcap")]
    pub trace: Option<PathBuf>,
    /// Whether registered memory counts against the limit on locked memory (`ulimit -l`), as it does on a real device
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

/// What RLIMIT_MEMLOCK means to registrations.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Memlock {
    /// Nothing: the software HCA locks no memory
    #[default]
    Ignore,
    /// A registration beyond it fails as the kernel's does, unless the program has CAP_IPC_LOCK
    Enforce,
}

/// Run a program on the software HCA.
///
/// The program sees one RDMA device. Its exit status becomes that of `peerdma run`, signals are passed on, and nothing
/// is left behind. Several programs may run at once, and find each other at the addresses of this machine.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma run -- ibv_devinfo -v
  peerdma run -- ib_write_bw -a 127.0.0.1
  peerdma run --trace ping.pcap -- ibv_rc_pingpong -g 0 127.0.0.1
  peerdma run --platform far-gpu.toml -- ./my-program

Exit status: the program's own; 127 when it is not found, 126 when it cannot be started, and 128 + n (by the signal \
itself) when signal n ended it.

A program that preloading cannot reach (statically linked, set-user-ID, of another architecture or C library) runs \
without the device; a warning on stderr says so.")]
pub struct Run {
    /// The device.
    #[command(flatten)]
    pub device: Device,
    /// The network it is in: the host's, or one of its own with a loopback interface and nothing else, for where UDP port 4791 is
    /// another user's
    #[arg(long, value_enum, default_value_t)]
    pub net: Net,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    pub program: Vec<OsString>,
}

/// Print the settings of `run` for shells, containers, launchers.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  eval \"$(peerdma env)\"               sh, bash, zsh
  peerdma env --fish | source         fish
  peerdma env --docker >> Dockerfile  ENV lines; the image needs the paths
  mpirun -x LD_PRELOAD -x LD_LIBRARY_PATH -x PEERDMA_SYSFS ./program")]
pub struct Env {
    /// The device.
    #[command(flatten)]
    pub device: Device,
    /// For the fish shell
    #[arg(long, group = "form")]
    pub fish: bool,
    /// As ENV lines of a container file
    #[arg(long, group = "form")]
    pub docker: bool,
    /// As a JSON object
    #[arg(long, group = "form")]
    pub json: bool,
}

/// List the processes that have a device open.
///
/// They are those of this user in this network namespace.
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  peerdma ps\n  peerdma ps --json | jq '.processes[].pid'")]
pub struct Ps {
    /// As a JSON object
    #[arg(long)]
    pub json: bool,
}

/// List exported GPU memory, move it, take it back.
///
/// Buffers of software GPUs move between video memory and host memory while programs use them: their next access finds the
/// bytes at the new place. A pinned buffer stays; a revoked one is lost to its importers for good.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma gpu
  peerdma gpu move all host
  peerdma gpu move 3f07c1d2aa90be11 vram
  peerdma gpu revoke 3f07c1d2aa90be11
  peerdma gpu alloc 64M               and then: ib_write_bw --mmap=FILE
  peerdma gpu providers
  peerdma gpu --json | jq '.buffers[].moves'")]
pub struct Gpu {
    /// As a JSON object
    #[arg(long)]
    pub json: bool,
    /// What to do with one; without it they are listed.
    #[command(subcommand)]
    pub action: Option<GpuAction>,
}

/// What to do with buffers.
#[derive(Subcommand, Debug)]
pub enum GpuAction {
    /// Move a buffer
    Move {
        /// The buffer as the list names it, or `all`
        buffer: String,
        /// Where to
        #[arg(value_enum)]
        place: GpuPlace,
    },
    /// Allocate memory of the platform's first GPU, print its file, and keep it until a signal
    ///
    /// Programs map the file: it is GPU memory to them.
    Alloc {
        /// How much. K, M and G mean KiB, MiB and GiB
        #[arg(value_name = "N", value_parser = parse_size)]
        size: u64,
        /// The machine's PCIe tree: a name of `peerdma platforms`, or a file
        #[arg(long, value_name = "NAME|FILE")]
        platform: Option<PathBuf>,
    },
    /// List the providers of such memory: what their exports are, and whether they work here
    ///
    /// A dynamic export may move while it is imported, a static one stays. A provider is tried: it allocates a page and exports it.
    #[command(after_help = "\
Examples:
  peerdma gpu providers
  sudo peerdma gpu providers --json | jq '.providers[] | select(.works)'")]
    Providers {
        /// As a JSON object
        #[arg(long)]
        json: bool,
        /// The machine's PCIe tree: a name of `peerdma platforms`, or a file
        #[arg(long, value_name = "NAME|FILE")]
        platform: Option<PathBuf>,
    },
    /// Take a buffer back from all importers, for good
    Revoke {
        /// The buffer as the list names it, or `all`
        buffer: String,
    },
}

/// Unplug the HCAs' Data Direct functions from programs that run, and plug them in again.
///
/// A program loses what it registered by Data Direct when the function goes: its handles stay, its transfers through them fail,
/// and it can register nothing more that way until the function is back. Its other memory is not concerned.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma ctl
  peerdma ctl unplug all
  peerdma ctl unplug 4711
  peerdma ctl replug 0000:19:00.0
  peerdma ctl --json | jq '.functions[].state'")]
pub struct Ctl {
    /// As a JSON object
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do; without it the functions are listed.
    #[command(subcommand)]
    pub action: Option<CtlAction>,
}

/// What `peerdma ctl` does.
#[derive(Subcommand, Debug)]
pub enum CtlAction {
    /// Take the function away
    Unplug {
        /// A process, a function's address, or `all`
        which: String,
    },
    /// Plug it in again
    Replug {
        /// A process, a function's address, or `all`
        which: String,
    },
}

/// Where a buffer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum GpuPlace {
    /// The GPU's memory
    Vram,
    /// Host memory
    Host,
}

/// Show what the devices move, live: by device, route, link and queue pair.
///
/// They are those of this user in this network namespace. Until it is interrupted, or --count is reached.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma top
  peerdma top --interval 0.2
  peerdma top --count 10 --json | jq '.devices[].sent_bytes_per_second'")]
pub struct Top {
    /// Seconds between two looks, 0.05 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pub interval: f64,
    /// End after this many
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// As a line of JSON for each look
    #[arg(long)]
    pub json: bool,
}

fn fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(fraction) if fraction > 0.0 && fraction <= 1.0 => Ok(fraction),
        _ => Err("a number above 0, 1 at most, is expected".to_owned()),
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("a number of seconds from 0.05 to 3600 is expected".to_owned()),
    }
}

/// Serve a software ConnectX to a virtual machine, whose own drivers drive it.
///
/// QEMU 10.1 and later take it as a PCI function (`-device vfio-user-pci`), and stock Linux binds mlx5_core and mlx5_ib to it. The
/// adapter is on an InfiniBand subnet with the others of this user in this network namespace. It is served to one machine after
/// another, each of which finds it reset, until a signal ends it.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma connectx --socket /tmp/cx8 &
  qemu-system-x86_64 -M q35,memory-backend=ram -m 2G \\
    -object memory-backend-memfd,id=ram,size=2G,share=on -device pcie-root-port,id=root \\
    -device '{\"driver\":\"vfio-user-pci\",\"bus\":\"root\",\"socket\":{\"type\":\"unix\",\"path\":\"/tmp/cx8\"}}' ...
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
    /// The machine whose first HCA it is, and whose links its bytes take: a name of `peerdma platforms`, or a file
    #[arg(long, value_name = "NAME|FILE")]
    pub platform: Option<PathBuf>,
    /// Pace the PCIe links of the platform to their rates, or to this fraction of them
    #[arg(long, value_name = "FRACTION", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = fraction)]
    pub pace: Option<f64>,
    /// What its port is
    #[arg(long, value_enum, default_value_t)]
    pub port: Port,
    /// Let the guest have this address of this host too, so that programs here meet it there (may be given several times); without,
    /// it takes none
    #[arg(long = "address", value_name = "IP", value_parser = of_host)]
    pub addresses: Vec<IpAddr>,
    /// MiB that this process may take for what the guest makes it remember: objects, lists of pages and keys, rules. Beyond, the
    /// adapter has no resources
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(16..))]
    pub max_memory: u32,
    /// Append the packets to a file that Wireshark reads; several programs may share it
    #[arg(long, value_name = "FILE.pcap")]
    pub trace: Option<PathBuf>,
    /// Serve a virtual GPU too, on this UNIX socket
    #[arg(long, value_name = "PATH")]
    pub gpu_socket: Option<PathBuf>,
    /// MiB of the virtual GPU's memory, a power of two
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = power_of_two, requires = "gpu_socket")]
    pub gpu_memory: u32,
}

fn no_or_power_of_two(text: &str) -> Result<u32, String> {
    if text == "0" { Ok(0) } else { power_of_two(text) }
}

fn power_of_two(text: &str) -> Result<u32, String> {
    match text.parse::<u32>() {
        Ok(mib) if mib.is_power_of_two() && mib <= 1 << 16 => Ok(mib),
        _ => Err("a power of two from 1 to 65536 is expected".to_owned()),
    }
}

/// An address that a guest may share with this host.
fn of_host(text: &str) -> Result<IpAddr, String> {
    match text.parse::<IpAddr>() {
        Ok(ip) if ip.is_loopback() => Err("loopback addresses stay this host's alone".to_owned()),
        Ok(ip) if ip.is_unspecified() || ip.is_multicast() => Err("it names no host".to_owned()),
        Ok(ip) => Ok(ip.to_canonical()),
        Err(_) => Err("an IP address is expected".to_owned()),
    }
}

/// Where a program is.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Net {
    /// In the network namespace that it is started in
    #[default]
    Host,
    /// In a network namespace of its own
    Private,
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

/// Boot a virtual machine with a software ConnectX, and run a command in it.
///
/// Its kernel is a stock one, with its own mlx5 drivers; its user space is this machine's rdma-core, perftest and what else of that
/// kind is installed here, and the command's own program. A kernel, and a QEMU of 10.1 or later where this machine has none, are
/// fetched from this machine's Debian mirror into its cache, once. Needs no root.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma vm -- ibv_devinfo
  peerdma vm -- sh -c 'ibv_rc_pingpong & sleep 1; ibv_rc_pingpong localhost'
  peerdma vm -- ./my-program --its-option
  peerdma vm                  a shell in it; `poweroff -f`, or its end, ends the machine
  peerdma vm --print          QEMU's command line, for machines of your own

Exit status: the command's own; 1 when the machine cannot be started or ends before the command does.")]
pub struct Vm {
    /// MiB of memory
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(256..))]
    pub memory: u32,
    /// MiB of a virtual GPU's memory, a power of two; its driver is built by this machine's gcc and make. 0 for no GPU
    #[arg(long, value_name = "MIB", default_value_t = 0, value_parser = no_or_power_of_two)]
    pub gpu_memory: u32,
    /// Processors
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
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
    /// Let the guest have this address of this host too, so that programs here meet it there (may be given several times); without,
    /// it takes none
    #[arg(long = "address", value_name = "IP", value_parser = of_host)]
    pub addresses: Vec<IpAddr>,
    /// MiB that this process may take for what the guest makes it remember: objects, lists of pages and keys, rules. Beyond, the
    /// adapter has no resources
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(16..))]
    pub max_memory: u32,
    /// Append the adapter's packets to a file that Wireshark reads
    #[arg(long, value_name = "FILE.pcap")]
    pub trace: Option<PathBuf>,
    /// Print the command line of a machine with an adapter served by `peerdma connectx`, and start nothing
    #[arg(long, conflicts_with_all = ["command", "trace"])]
    pub print: bool,
    /// The command and its arguments; without it, a shell
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// List the ready-made platforms, or print the file of one, to change and use with --platform.
///
/// A platform is the machine that software devices live in: what its file says of switches, ACS and links decides which way the
/// bytes go.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma platforms
  peerdma demo --platform server
  peerdma topo --from dgx
  peerdma platforms default > my.toml
  $EDITOR my.toml
  peerdma demo --platform ./my.toml")]
pub struct Platforms {
    /// The platform whose file to print
    pub name: Option<String>,
    /// List them as a JSON object
    #[arg(long, conflicts_with = "name")]
    pub json: bool,
}

/// Show a machine's PCIe tree: which network adapter is near which GPU.
///
/// Reads this machine, or with --from a machine that somebody else captured. What cannot be read is shown as unknown;
/// ACS and ATS need root.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma topo
  peerdma topo --pair 0000:3b:00.0,mlx5_0 --pair 0000:5e:00.0,mlx5_0
  sudo peerdma topo --write-capture node17.tar.gz
  peerdma topo --from node17.tar.gz --svg node17.svg
  sudo peerdma topo --acs 'xx100xx@0000:3b:00.0'    what a boot with pci=config_acs= would change
  lspci -Dnnvvv > node17.txt; peerdma topo --from node17.txt
  peerdma topo --json | jq '.pairs[] | select(.label == \"PIX\")'

--from reads a folder or tar (.gz, .bz2) with /sys in it, lspci (best -D -nn -vvv), NCCL's topology XML, hwloc's XML, \
nvidia-smi -q -x, an rdma_topo dump, platform files, and a name of `peerdma platforms`.")]
pub struct Topo {
    /// Read this file or folder instead of this machine
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Show the way between two devices, given by address or name; several show what each gets when all run at once
    #[arg(long, value_name = "GPU,NIC")]
    pub pair: Vec<String>,
    /// Show the machine as it would be after a boot with pci=config_acs=VALUE: ACS bits, verdicts, IOMMU groups
    #[arg(long, value_name = "VALUE")]
    pub acs: Option<pcie::ConfigAcs>,
    /// Show all devices
    #[arg(long)]
    pub all: bool,
    /// As a JSON object
    #[arg(long)]
    pub json: bool,
    /// Draw the tree, with the ways of --pair (default: of each GPU and its nearest adapter) in colour
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write what a machine shows of itself to one file, for --from elsewhere
    #[arg(long, value_name = "FILE.tar.gz", conflicts_with_all = ["json", "svg", "pair", "acs", "all"])]
    pub write_capture: Option<PathBuf>,
    /// Print the dump that rdma-core's rdma_topo reads
    #[arg(long, conflicts_with_all = ["json", "svg", "pair", "acs", "all", "write_capture"])]
    pub rdma_topo: bool,
}

/// Say which way between a GPU and a network adapter works on this host, which does not, why, and what to change.
///
/// For Peer-Direct, dma-buf (pinned and dynamic), Data Direct, device-private peer-to-peer, ATS and the software HCA: each
/// condition is looked up where the kernel keeps it. What cannot be read is unknown, never off; run it as root to read ACS
/// and ATS. Drivers are asked whether they register dma-bufs, which registers nothing.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sudo peerdma doctor
  peerdma doctor --all                          every condition with its evidence
  peerdma doctor --probe                        try what can be tried without harm
  peerdma doctor --from node17.tar.gz           a host captured by peerdma topo --write-capture
  peerdma doctor --json | jq '.findings[] | select(.outcome == \"works\")'

--json prints one object. Members may be added to it; those here keep their names and meanings:
  host, kernel           whose machine it is and its kernel's release, null where unknown
  format                 what it was read from
  status                 the exit status
  findings               one for each mechanism and GPU-adapter pair, with
    mechanism            peer-direct, dma-buf-pinned, dma-buf-dynamic, data-direct,
                         device-private, ats or software-hca
    gpu, nic             PCIe addresses, null for what is not of a pair
    outcome              works, unknown or does-not
    conditions           in the order in which they are looked up, each with
      what               what must be so
      holds              true, false, or null where it is unknown
      evidence           where that is read, and what is there
      remedy             what to change, null where there is nothing

Exit status: 0 when every GPU has a way to an adapter, 2 when some GPU has none, 3 when for some GPU it is not known, 4 \
when there is no GPU or no adapter, 1 when the host cannot be examined.")]
pub struct Doctor {
    /// Also register memory with each RDMA device, a buffer of every GPU that exports one too, let the device write to itself, and
    /// let the software HCA prove itself
    #[arg(long, conflicts_with = "from")]
    pub probe: bool,
    /// Examine this captured machine instead of this host: anything that `peerdma topo --from` reads
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Show every condition, also those that hold
    #[arg(long)]
    pub all: bool,
    /// As a JSON object
    #[arg(long)]
    pub json: bool,
}

/// Prove that GPU memory crosses between two processes by RDMA.
///
/// Two processes start, each with its own software GPU. The first loads a file into its video memory. Both export
/// video memory as dma-buf descriptors and register them with the embedded libibverbs. The file crosses by RDMA WRITE
/// into the far GPU, which hashes it, and comes back by RDMA READ into a second buffer, which is compared with the
/// first.
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
    /// How much: the file's first N bytes, repeated if it is shorter. K, M and G mean KiB, MiB and GiB
    #[arg(long, value_name = "N", value_parser = parse_size)]
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
    /// Whether it is a GPU's on the platform. Where the machine's own exporters keep theirs, user space is not told; it counts as
    /// the host's.
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

/// Side of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Side {
    /// Holds the file, writes and reads.
    Near,
    /// Receives and hashes.
    Far,
}

/// Bytes from `N`, `NK`, `NM`, `NG`.
fn parse_size(text: &str) -> Result<u64, String> {
    let (number, shift) = match text.trim_end_matches("iB").trim_end_matches('B') {
        text if text.ends_with(['k', 'K']) => (&text[..text.len() - 1], 10),
        text if text.ends_with(['m', 'M']) => (&text[..text.len() - 1], 20),
        text if text.ends_with(['g', 'G']) => (&text[..text.len() - 1], 30),
        text => (text, 0),
    };
    let number: u64 =
        number.trim().parse().map_err(|_| "a number such as 4096, 64K or 256M".to_owned())?;
    match number.checked_mul(1 << shift) {
        Some(0) => Err("at least one byte".to_owned()),
        Some(size) if size <= 1 << 40 => Ok(size),
        _ => Err("at most 1024G".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("64K"), Ok(65536));
        assert_eq!(parse_size("2MiB"), Ok(2 << 20));
        assert_eq!(parse_size("1g"), Ok(1 << 30));
        for bad in ["", "K", "0", "-1", "1.5M", "99999999999G", "é"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn everything_after_the_program_is_the_programs() {
        let cli = Cli::parse_from(["peerdma", "run", "--log", "sh", "--platform", "x", "--help"]);
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.program, ["sh", "--platform", "x", "--help"]);
        assert!(run.device.log && run.device.platform.is_none());
    }
}
