//! The commands that look at programs which have a device open, or ask something of them: `ps`,
//! `top` and `ctl`.

use super::values;
use clap::{Args, Subcommand};

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

/// Show what the devices move, live: by device, route, link and queue pair.
///
/// They are those of this user in this network namespace. Until it is interrupted, or --count is
/// reached.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  peerdma top
  peerdma top --interval 0.2
  peerdma top --count 10 --json | jq '.devices[].sent_bytes_per_second'")]
pub struct Top {
    /// Seconds between two looks, 0.05 to 3600
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = values::seconds)]
    pub interval: f64,
    /// End after this many
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// As a line of JSON for each look
    #[arg(long)]
    pub json: bool,
}

/// Unplug the HCAs' Data Direct functions from programs that run, and plug them in again.
///
/// A program loses what it registered by Data Direct when the function goes: its handles stay, its
/// transfers through them fail, and it can register nothing more that way until the function is
/// back. Its other memory is not concerned.
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
