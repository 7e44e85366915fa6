//! Programs of the Rust world that the suite runs: `mdbook` for the book, `cargo-deny` for what may
//! be depended on. Where this machine has none, cargo builds one into `target/tools`, once.

use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program and the version that is built where there is none.
pub struct Tool {
    pub name: &'static str,
    version: &'static str,
}

pub const MDBOOK: Tool = Tool { name: "mdbook", version: "0.5.4" };
pub const CARGO_DENY: Tool = Tool { name: "cargo-deny", version: "0.20.2" };

impl Tool {
    /// Builds it where it is missing. Where that fails, says so, and the suite that needs it is
    /// skipped.
    pub fn fetch(&self) {
        if let Err(error) = self.installed() {
            eprintln!("{error:#}");
        }
    }

    /// Where it is, if it is.
    pub fn found(&self) -> Option<PathBuf> {
        [PathBuf::from(self.name), self.own()].into_iter().find(|path| is_there(path))
    }

    /// Where it is, after it was built if need be.
    ///
    /// # Errors
    /// It cannot be built.
    pub fn installed(&self) -> Result<PathBuf> {
        if let Some(path) = self.found() {
            return Ok(path);
        }
        println!("installing {} into {}", self.name, folder().display());
        // Others build or test meanwhile.
        let mut install = Command::new("nice");
        install.args(["-n", "19", "cargo"]);
        // Unoptimised: each runs for seconds, and its optimised build takes minutes.
        install.args(["install", "--quiet", "--locked", "--debug", self.name]);
        install.args(["--version", self.version]);
        // Where there is no network, that is soon known.
        install.env("CARGO_NET_RETRY", "0").env("CARGO_HTTP_TIMEOUT", "15");
        // What a caller sets for this workspace's build is not for another's.
        install.arg("--root").arg(folder()).env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR");
        let built = install.status().context("cargo")?.success();
        ensure!(built, "cargo install {} failed", self.name);
        Ok(self.own())
    }

    /// Why a suite that needs it cannot run here.
    pub fn lacks(&self) -> Option<String> {
        let Tool { name, version, .. } = self;
        let words = || format!("{name} is not installed (cargo install --locked {name}@{version})");
        self.found().is_none().then(words)
    }

    fn own(&self) -> PathBuf {
        folder().join("bin").join(self.name)
    }
}

/// The search path of this process, with these programs at its end.
pub fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":");
    path.push(folder().join("bin"));
    path
}

fn folder() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.parent().unwrap_or(root).join("target/tools")
}

fn is_there(path: &Path) -> bool {
    let mut version = Command::new(path);
    version.arg("--version").stdin(Stdio::null());
    version.output().is_ok_and(|output| output.status.success())
}
