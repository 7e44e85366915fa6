//! Chores of the project: its tests, its book, its measurements and its lab, each one command.
//!
//! `cargo xtask test` is what the README and CI call. It promises to install what the tests need
//! where it may, to run every suite and the checks of text and rules beside them, and to end with
//! one line of totals in which nothing that was skipped is hidden.
//!
//! Start at `run` below, which leads to each chore: `suite` is the test command, `docs` the book,
//! `dist` the packages, `bench` the speed tables, `counts` the instruction counts, `soak` the long
//! random runs, `roots` the bare root file systems.
#![forbid(unsafe_code)]

mod allowed;
mod arm;
mod bench;
mod counts;
mod dist;
mod docs;
mod failures;
mod lab_tests;
mod packages;
mod pytorch;
mod roots;
mod rules;
mod soak;
mod suite;
mod tools;
mod totals;
mod watchdog;
mod wheels;

use anyhow::Result;
use clap::{Parser, Subcommand};
use roots::{By, Release, Task};
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
    /// Install what the tests need where it is missing, run every suite, print one closing line of
    /// totals
    #[command(after_help = "Examples:\n  cargo xtask test\n  cargo xtask test --only system\n  \
                            cargo xtask test --no-install")]
    Test {
        /// Run only the suites whose name contains this
        #[arg(long)]
        only: Option<String>,
        /// Never install packages; name what is missing and skip what needs it
        #[arg(long)]
        no_install: bool,
        /// Fail when a test is skipped that tests/allowed-skips.txt does not name, as CI does
        #[arg(long)]
        strict: bool,
    },
    /// Make the book of docs/ in target/book (installing mdbook into target/tools if there is
    /// none), and check every link
    Docs,
    /// Make packages that install, in target/dist: an archive that anybody unpacks, and one for
    /// Debian and its kin
    #[command(after_help = "Examples:\n  cargo xtask dist\n  cargo xtask dist --check\n  \
                            cargo xtask dist --try\n  \
                            cargo xtask dist --target aarch64-unknown-linux-gnu")]
    Dist(dist::Wanted),
    /// Measure the speed tables and plots of the book, beside bare sockets, UCX and libfabric in
    /// the same run
    #[command(after_help = "Examples:\n  cargo xtask bench --quick\n  \
                            cargo xtask bench --only wire --rounds 7 --json\n  \
                            cargo xtask bench --only curves --publish")]
    Bench(bench::Wanted),
    /// Count the instructions of the data path's small pieces and compare them with those in
    /// tests/instruction-counts.txt
    #[command(after_help = "Examples:\n  cargo xtask counts\n  cargo xtask counts --accept")]
    Counts {
        /// Keep the counts of today
        #[arg(long)]
        accept: bool,
    },
    /// Run the random tests for longer than the suite does, each for the time given
    #[command(
        after_help = "Examples:\n  cargo xtask soak\n  cargo xtask soak --seconds 3600 --seed 7\n  \
                            cargo xtask soak --list"
    )]
    Soak {
        /// How long each runs, in seconds; the suite gives each some 12 to 20
        #[arg(long, default_value_t = 600)]
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
    /// Boot the lab's guest (a distribution kernel with its RoCE driver) and run a shell script in
    /// it; or run the README's commands in a bare root file system; or the tests of PyTorch, or of
    /// the newest rdma-core
    #[command(after_help = "Examples:\n  cargo xtask lab --newest -- ls /dev/dma_heap\n  \
                            cargo xtask lab --bare-root\n  \
                            cargo xtask lab --root sid --only rooms\n  \
                            cargo xtask lab --root bookworm --plain\n  \
                            cargo xtask lab --root trixie -- cargo test --package link\n  \
                            cargo xtask lab --pytorch\n  \
                            cargo xtask lab --rdma-core --fresh")]
    Lab {
        /// The newest kernel of Debian's backports, not this machine's distribution's
        #[arg(long)]
        newest: bool,
        /// No guest but a root file system of Debian 12 with a C compiler, git and this machine's
        /// Rust, and in it the README's commands on a clone of the last commit
        #[arg(long, conflicts_with_all = ["newest", "root"])]
        bare_root: bool,
        /// The same of another release of Debian
        #[arg(long, value_enum, value_name = "RELEASE", conflicts_with = "newest")]
        root: Option<Release>,
        /// In the root, as a user without any privilege, who installs nothing: what he lacks is
        /// skipped and counted
        #[arg(long)]
        plain: bool,
        /// In the root, run only the suites whose name contains this
        #[arg(long, conflicts_with = "script")]
        only: Option<String>,
        /// Make the root afresh; else the one that was made before is used again, with all that was
        /// installed and built in it
        #[arg(long)]
        fresh: bool,
        /// Neither, but PyTorch on the software GPU: its CUDA wheel is fetched into target/pytorch,
        /// 4.5 GB, and the tests of it run
        #[arg(long, conflicts_with_all = [
            "newest", "bare_root", "root", "plain", "only", "fresh", "script",
        ])]
        pytorch: bool,
        /// Neither, but the generic tests of rdma-core's own suite in Debian's sid, on the software
        /// HCA and GPU: the root is fetched into target/sid, 300 MB, without a compiler or Rust,
        /// and `--fresh` fetches that of today
        #[arg(long, conflicts_with_all = [
            "newest", "bare_root", "root", "plain", "only", "pytorch", "script",
        ])]
        rdma_core: bool,
        /// What to run; without it the guest's devices are shown, or both commands of the README
        /// run
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
        Chore::Test { only, no_install, strict } => {
            packages::ensure(!no_install)?;
            suite::run_all(&suite::Wanted { only, strict, install: !no_install })
        }
        Chore::Docs => docs::build(),
        Chore::Dist(wanted) => {
            packages::ensure(true)?;
            dist::run(&wanted)
        }
        Chore::Bench(wanted) => bench::run(&wanted),
        Chore::Counts { accept } => counts::run(accept),
        Chore::Soak { list: true, .. } => {
            soak::list();
            Ok(true)
        }
        Chore::Soak { seconds, seed, only, list: false } => {
            packages::ensure(true)?;
            soak::run(seconds, seed, only.as_deref())
        }
        Chore::Lab { pytorch: true, .. } => {
            packages::ensure(true)?;
            pytorch::run()
        }
        Chore::Lab { rdma_core: true, fresh, .. } => {
            packages::ensure(true)?;
            lab_tests::run_newest_rdma_core(fresh)
        }
        Chore::Lab { newest, bare_root, root, plain, only, fresh, script, .. } => {
            packages::ensure(true)?;
            let Some(release) = root.or(bare_root.then_some(Release::Bookworm)) else {
                let for_root = only.is_some() || fresh || plain;
                anyhow::ensure!(!for_root, "--only, --fresh and --plain are for a root");
                return lab(newest, &script);
            };
            let task = match only {
                Some(only) => Task::Suites(only),
                None if script.is_empty() => Task::Readme,
                None => Task::Command(script),
            };
            let by = if plain { By::PlainUser } else { By::Root };
            roots::run(release, fresh, by, &task)
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
