//! Chores of the project: `cargo xtask test` is what the README and CI call.
#![forbid(unsafe_code)]

mod bench;
mod packages;
mod rules;
mod soak;
mod suite;
mod watchdog;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;
use system::lab::{Guest, newest_kernel, own_kernel};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Chores of the project", version)]
struct Cli {
    #[command(subcommand)]
    command: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Install what the tests need where it is missing, run every suite, print one closing line of totals
    #[command(
        after_help = "Examples:\n  cargo xtask test\n  cargo xtask test --only system\n  cargo xtask test --no-install"
    )]
    Test {
        /// Run only the suites whose name contains this
        #[arg(long)]
        only: Option<String>,
        /// Never install packages; name what is missing and skip what needs it
        #[arg(long)]
        no_install: bool,
    },
    /// Measure the speed table of the README, beside bare sockets and UCX over TCP in the same run
    #[command(after_help = "Examples:\n  cargo xtask bench\n  cargo xtask bench --rounds 7 --json")]
    Bench {
        /// How often everything is measured; medians are shown
        #[arg(long, default_value_t = 5)]
        rounds: u32,
        /// Measure a part only
        #[arg(long, value_enum)]
        only: Option<bench::Part>,
        /// Print every figure as JSON
        #[arg(long)]
        json: bool,
        /// Already inside the benchmark's network namespace
        #[arg(long, hide = true)]
        inside: bool,
    },
    /// Run the random tests for longer than the suite does, each for the time given
    #[command(
        after_help = "Examples:\n  cargo xtask soak\n  cargo xtask soak --seconds 3600 --seed 7\n  \
                            cargo xtask soak --list"
    )]
    Soak {
        /// How long each runs
        #[arg(long, default_value_t = 60)]
        seconds: u64,
        /// Repeat what happened at random in a run that printed this
        #[arg(long)]
        seed: Option<u64>,
        /// Run only those whose name contains this
        #[arg(long)]
        only: Option<String>,
        /// Say what there is to run, and what it does
        #[arg(long)]
        list: bool,
    },
    /// Boot the lab's guest (a distribution kernel with its RoCE driver) and run a shell script in it
    #[command(after_help = "Example:\n  cargo xtask lab --newest -- ls /dev/dma_heap")]
    Lab {
        /// The newest kernel of Debian's backports, not this machine's distribution's
        #[arg(long)]
        newest: bool,
        /// What to run; without it the guest's devices are shown
        #[arg(last = true)]
        script: Vec<String>,
    },
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<bool> {
    match cli.command {
        Chore::Test { only, no_install } => {
            packages::ensure(!no_install)?;
            suite::run_all(only.as_deref())
        }
        Chore::Bench { rounds, only, json, inside: true } => bench::inside(rounds, only, json),
        Chore::Bench { rounds, only, json, inside: false } => bench::run(rounds, only, json),
        Chore::Soak { list: true, .. } => {
            soak::list();
            Ok(true)
        }
        Chore::Soak { seconds, seed, only, list: false } => {
            packages::ensure(true)?;
            soak::run(seconds, seed, only.as_deref())
        }
        Chore::Lab { newest, script } => {
            packages::ensure(true)?;
            lab(newest, &script)
        }
    }
}

fn lab(newest: bool, script: &[String]) -> Result<bool> {
    let kernel = if newest { newest_kernel()? } else { own_kernel()? };
    let guest = Guest::boot_kernel(&kernel, &[])?;
    let script = if script.is_empty() { "ibv_devinfo; rdma link".into() } else { script.join(" ") };
    let (status, said) = guest.script(&script, std::time::Duration::from_secs(600))?;
    print!("{said}");
    Ok(status == 0)
}
