//! The processors that packages are made for, by the names that Rust and Debian have for each, and
//! how a program for one runs here.

use crate::arm;
use std::path::Path;
use std::process::Command;

/// The oldest C library that packages run with: that of Debian 10, RHEL 8 and Ubuntu 18.10.
pub const C_LIBRARY: &str = "2.28";

/// A processor that packages are made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    X86_64,
    Aarch64,
}

impl Target {
    /// By a target triple of Rust's.
    ///
    /// # Errors
    /// It is none of these.
    pub fn parse(triple: &str) -> Result<Target, String> {
        let all = [Target::X86_64, Target::Aarch64];
        let words = || format!("packages are made for {} and {}", all[0].triple(), all[1].triple());
        all.into_iter().find(|target| target.triple() == triple).ok_or_else(words)
    }

    /// Rust's name for it.
    pub fn triple(self) -> &'static str {
        match self {
            Target::X86_64 => "x86_64-unknown-linux-gnu",
            Target::Aarch64 => arm::TARGET,
        }
    }

    /// The kernel's name for it, as in `uname -m`.
    pub fn machine(self) -> &'static str {
        match self {
            Target::X86_64 => "x86_64",
            Target::Aarch64 => "aarch64",
        }
    }

    /// Debian's name for it.
    pub fn debian(self) -> &'static str {
        match self {
            Target::X86_64 => "amd64",
            Target::Aarch64 => "arm64",
        }
    }

    /// Whether this machine is such a one.
    pub fn is_here(self) -> bool {
        std::env::consts::ARCH == self.machine()
    }

    /// A program for it, emulated where this machine is another.
    pub fn command(self, program: &Path) -> Command {
        if self.is_here() {
            return Command::new(program);
        }
        let mut command = Command::new(format!("qemu-{}", self.machine()));
        command.args(["-L", &format!("/usr/{}-linux-gnu", self.machine())]).arg(program);
        command
    }
}
