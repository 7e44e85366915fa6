//! The `peerdma` program: runs other programs on the software HCA, proves that it works, and shows who uses it.
//!
//! One file a command; what commands share: `settings` (the environment that makes a program see the device),
//! `embedded` (the library inside this program), `session` (temporary files), `tree` (the sysfs a program sees).

mod args;
mod docs;
mod embedded;
mod env;
mod failure;
#[path = "../../verbs/src/identity.rs"]
mod identity;
mod lookup;
mod ps;
mod reach;
mod run;
mod session;
mod settings;
mod style;
mod supervise;
mod tree;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run(arguments) => run::run(&arguments),
        Command::Env(arguments) => env::env(&arguments),
        Command::Completions { shell } => docs::completions(shell),
        Command::Man => docs::man(),
        Command::Ps(arguments) => ps::ps(&arguments),
        Command::Demo(_) => Err(failure::Failure::new("later")),
    };
    ExitCode::from(outcome.unwrap_or_else(|failure| failure.report()))
}
