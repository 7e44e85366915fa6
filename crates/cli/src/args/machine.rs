//! The commands about a machine: `topo`, `doctor` and `platforms`.

use clap::Args;
use std::path::PathBuf;

/// Show a machine's PCIe tree: which network adapter is near which GPU.
///
/// Reads this machine, or with --from a machine that somebody else captured. What cannot be read is
/// shown as unknown; ACS and ATS need root.
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

--from reads a folder or tar (.gz, .bz2) with /sys in it, lspci (best -D -nn -vvv), NCCL's \
topology XML, hwloc's XML, nvidia-smi -q -x, an rdma_topo dump, platform files, and a name of \
`peerdma platforms`.")]
pub struct Topo {
    /// Read this file or folder instead of this machine
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Show the way between two devices, given by address or name; several show what each gets when
    /// all run at once
    #[arg(long, value_name = "GPU,NIC")]
    pub pair: Vec<String>,
    /// Show the machine as it would be after a boot with pci=config_acs=VALUE: ACS bits, verdicts,
    /// IOMMU groups
    #[arg(long, value_name = "VALUE")]
    pub acs: Option<pcie::ConfigAcs>,
    /// Show all devices
    #[arg(long)]
    pub all: bool,
    /// As a JSON object
    #[arg(long)]
    pub json: bool,
    /// Draw the tree, with the ways of --pair (default: of each GPU and its nearest adapter) in
    /// colour
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write what a machine shows of itself to one file, for --from elsewhere
    #[arg(long, value_name = "FILE.tar.gz",
          conflicts_with_all = ["json", "svg", "pair", "acs", "all"])]
    pub write_capture: Option<PathBuf>,
    /// Print the dump that rdma-core's rdma_topo reads
    #[arg(long, conflicts_with_all = ["json", "svg", "pair", "acs", "all", "write_capture"])]
    pub rdma_topo: bool,
}

/// Say which way between a GPU and a network adapter works on this host, which does not, why, and
/// what to change.
///
/// For Peer-Direct, dma-buf (pinned and dynamic), Data Direct, device-private peer-to-peer, ATS and
/// the software HCA: each condition is looked up where the kernel keeps it. What cannot be read is
/// unknown, never off; run it as root to read ACS and ATS. Drivers are asked whether they register
/// dma-bufs, which registers nothing.
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

Exit status: 0 when every GPU has a way to an adapter, 2 when some GPU has none, 3 when for some \
GPU it is not known, 4 when there is no GPU or no adapter, 1 when the host cannot be examined.")]
pub struct Doctor {
    /// Also register memory with each RDMA device, a buffer of every GPU that exports one too, let
    /// the device write to itself, and let the software HCA prove itself
    #[arg(long, conflicts_with = "from")]
    pub probe: bool,
    /// Examine this captured machine instead of this host: anything that `peerdma topo --from`
    /// reads
    #[arg(long, value_name = "FILE")]
    pub from: Option<PathBuf>,
    /// Show every condition, also those that hold
    #[arg(long)]
    pub all: bool,
    /// As a JSON object
    #[arg(long)]
    pub json: bool,
}

/// List the ready-made platforms, or print the file of one, to change and use with --platform.
///
/// A platform is the machine that software devices live in: what its file says of switches, ACS and
/// links decides which way the bytes go.
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
