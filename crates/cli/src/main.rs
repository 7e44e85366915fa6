//! The `peerdma` program: runs other programs on the software HCA, proves that it works, and shows who uses it.
//!
//! One file a command; what commands share: `settings` (the environment that makes a program see the device),
//! `embedded` (the library inside this program), `session` (temporary files), `tree` (the sysfs a program sees).
// Only `supervise` may: waiting for signals and children has no safe interface.
#![deny(unsafe_code)]

mod adapter;
mod args;
mod connectx;
mod ctl;
mod demo;
mod docs;
mod doctor;
mod drm;
mod embedded;
mod env;
mod failure;
mod gpu;
mod lookup;
mod observer;
mod own_network;
mod platforms;
mod ps;
mod reach;
mod run;
mod session;
mod settings;
mod style;
mod supervise;
mod top;
mod topo;
mod tree;
mod virtual_gpu;
mod vm;

use args::{Cli, Command, DemoPeer};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|first| first == args::DEMO_PEER) {
        let arguments = DemoPeer::parse_from(std::env::args_os().skip(1));
        return exit(demo::peer::peer(&arguments));
    }
    let outcome = match Cli::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Env(arguments) => env::env(&arguments),
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

fn exit(outcome: failure::Outcome) -> ExitCode {
    ExitCode::from(outcome.unwrap_or_else(|failure| failure.report()))
}
