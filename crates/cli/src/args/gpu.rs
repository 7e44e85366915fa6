//! The command about exported GPU memory: `gpu`.

use super::values;
use clap::{Args, Subcommand};
use std::path::PathBuf;

/// List exported GPU memory, move it, take it back.
///
/// Buffers of software GPUs move between video memory and host memory while programs use them:
/// their next access finds the bytes at the new place. A pinned buffer stays; a revoked one is lost
/// to its importers for good.
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
        #[arg(value_name = "N", value_parser = values::parse_size)]
        size: u64,
        /// The machine's PCIe tree: a name of `peerdma platforms`, or a file
        #[arg(long, value_name = "NAME|FILE")]
        platform: Option<PathBuf>,
    },
    /// List the providers of such memory: what their exports are, and whether they work here
    ///
    /// A dynamic export may move while it is imported, a static one stays. A provider is tried: it
    /// allocates a page and exports it.
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

/// Where a buffer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum GpuPlace {
    /// The GPU's memory
    Vram,
    /// Host memory
    Host,
}
