//! The command line. Each file has a family of commands, as the folders beside this one do.

pub mod demo;
pub mod device;
pub mod docs;
pub mod gpu;
pub mod guest;
pub mod launch;
pub mod machine;
mod values;
pub mod watch;

use self::gpu::Gpu;
use clap::{Parser, Subcommand};
use demo::Demo;
use guest::{Connectx, Vm};
use launch::{Cdi, Env, Run};
use machine::{Doctor, Platforms, Topo};
use watch::{Ctl, Ps, Top};

/// GPUDirect RDMA in user space: a software HCA that speaks RoCEv2 and appears to unmodified
/// programs as libibverbs. It needs no NIC, no GPU, no kernel module and no root.
#[derive(Parser, Debug)]
#[command(name = "peerdma", version, styles = crate::console::style::HELP,
          arg_required_else_help = true, after_help = "\
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
    Cdi(Cdi),
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_after_the_program_is_the_programs() {
        let cli = Cli::parse_from(["peerdma", "run", "--log", "sh", "--platform", "x", "--help"]);
        let Command::Run(run) = cli.command else { panic!("not run") };
        assert_eq!(run.program, ["sh", "--platform", "x", "--help"]);
        assert!(run.device.log && run.device.platform.is_none());
    }
}
