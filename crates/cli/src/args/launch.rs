//! The commands that put programs on the device: `run`, `env` and `cdi`.

use super::device::Device;
use clap::Args;
use std::ffi::OsString;
use std::path::PathBuf;

/// Run a program on the software HCA.
///
/// The program sees one RDMA device, or as many as its --platform has HCAs. Its exit status becomes
/// that of `peerdma run`, signals are passed on, and nothing is left behind. Several programs may
/// run at once, and find each other at the addresses of this machine.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma run -- ibv_devinfo -v
  peerdma run -- ib_write_bw -a 127.0.0.1
  peerdma run --trace ping.pcap -- ibv_rc_pingpong -g 0 127.0.0.1
  peerdma run --platform far-gpu.toml -- ./my-program

Exit status: the program's own; 127 when it is not found, 126 when it cannot be started, and 128 + \
n (by the signal itself) when signal n ended it.

A program that preloading cannot reach (statically linked, set-user-ID, of another architecture or \
C library) runs without the device; a warning on stderr says so.")]
pub struct Run {
    /// The device.
    #[command(flatten)]
    pub device: Device,
    /// The network it is in: the host's, or one of its own with a loopback interface and nothing
    /// else, for where UDP port 4791 is another user's
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

/// Where a program is.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Net {
    /// In the network namespace that it is started in
    #[default]
    Host,
    /// In a network namespace of its own
    Private,
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

/// Print a Container Device Interface file, by which container runtimes give containers the
/// software HCA.
///
/// Its devices are peerdma.dev/hca=all, and 0, 1, ... for one HCA of the platform. They set what
/// `env` prints and mount what that names; an LD_PRELOAD or LD_LIBRARY_PATH of the image is
/// replaced. Write the file anew after each change of version.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  sudo peerdma cdi --output /etc/cdi/peerdma.json
  podman run --rm --device peerdma.dev/hca=all IMAGE ibv_devinfo
  docker run --rm --device peerdma.dev/hca=all IMAGE ibv_devinfo
  peerdma cdi --platform dgx | jq '.devices[].name'")]
pub struct Cdi {
    /// The device.
    #[command(flatten)]
    pub device: Device,
    /// Write it to this file instead of printing it
    #[arg(long, value_name = "FILE.json")]
    pub output: Option<PathBuf>,
}
