//! The `peerdma` program: runs other programs on the software HCA, proves that it works, and shows
//! who uses it.
//!
//! One folder a family of commands: `launch`, `demo`, `machine`, `gpu`, `guest` and `watch`. What
//! they share is below them: `args` (the command line), `surroundings` (the library inside this
//! program, and all that makes another one see the device), `process` (children, signals) and
//! `console`.
// Only `process/supervise.rs` may: waiting for signals and children has no safe interface.
#![deny(unsafe_code)]

mod args;
mod console;
mod demo;
mod gpu;
mod guest;
mod launch;
mod machine;
mod process;
mod surroundings;
mod watch;

use args::demo::{DEMO_PEER, DemoPeer};
use args::{Cli, Command, docs};
use clap::Parser;
use console::failure::Outcome;
use guest::{connectx, vm};
use launch::{cdi, env, run};
use machine::{doctor, platforms, topo};
use std::process::ExitCode;
use watch::{ctl, ps, top};

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == DEMO_PEER) {
        let arguments = DemoPeer::parse_from(std::env::args_os().skip(1));
        return exit(demo::peer::peer(&arguments));
    }
    let outcome = match Cli::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Env(arguments) => env::env(&arguments),
        Command::Cdi(arguments) => cdi::cdi(&arguments),
        Command::Platforms(arguments) => platforms::platforms(&arguments),
        Command::Completions { shell } => docs::completions(shell),
        Command::Man => docs::man(),
        Command::Ps(arguments) => ps::ps(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Topo(arguments) => topo::topo(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Connectx(arguments) => connectx::connectx(&arguments),
        Command::Vm(arguments) => vm::vm(&arguments),
        Command::Gpu(arguments) => gpu::gpu(&arguments),
        Command::Ctl(arguments) => ctl::ctl(&arguments),
        Command::Demo(arguments) => demo::demo(&arguments),
    };
    exit(outcome)
}

fn exit(outcome: Outcome) -> ExitCode {
    ExitCode::from(outcome.unwrap_or_else(|failure| failure.report()))
}
