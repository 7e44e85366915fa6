//! Builds the program, and with it the libraries that it embeds, against an old C library: zig is
//! the C compiler and linker, for it brings the symbols of every glibc. cargo-zigbuild hands it to
//! cargo by variables, which the program's build script and its nested cargo inherit.
//!
//! Nothing of this machine is in the result. The paths of the sources, of cargo's registry and of
//! the target folder are given other names; flags and settings of the caller's do not count.

use super::target::{C_LIBRARY, Target};
use anyhow::{Context, Result, ensure};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tools, each with its version, as Python wheels.
const WHEELS: &[&str] = &["cargo-zigbuild==0.24.1", "ziglang==0.17.1"];
/// Says in the environment's folder what is in it.
const LIST: &str = "installed.txt";

/// Where zig is; made below `target` on first use.
pub struct Zig {
    folder: PathBuf,
}

impl Zig {
    /// # Errors
    /// It is not there and cannot be fetched.
    pub fn installed(target: &Path) -> Result<Zig> {
        let folder = target.join("zig");
        let list = folder.join(LIST);
        if std::fs::read_to_string(&list).is_ok_and(|text| text == WHEELS.join("\n")) {
            return Ok(Zig { folder });
        }
        println!("installing zig into {}", folder.display());
        let mut environment = Command::new("python3");
        run(environment.args(["-m", "venv", "--clear"]).arg(&folder))?;
        let mut install = Command::new(folder.join("bin/pip"));
        install.args(["install", "--quiet", "--no-deps", "--disable-pip-version-check"]);
        run(install.args(["--only-binary", ":all:"]).args(WHEELS))?;
        std::fs::write(list, WHEELS.join("\n")).context("the list of wheels")?;
        Ok(Zig { folder })
    }

    /// Builds the program of a source tree in a folder, and says where it is.
    ///
    /// # Errors
    /// Rust's library for the target is missing, or the build fails.
    pub fn build(&self, tree: &Path, folder: &Path, target: Target) -> Result<PathBuf> {
        let folder = std::path::absolute(folder)?;
        // So that its registry has a folder, which gets another name.
        let mut fetch = Command::new("cargo");
        fetch.args(["fetch", "--quiet", "--locked", "--target", target.triple()]);
        run(fetch.current_dir(tree))?;
        let mut build = Command::new(self.folder.join("bin/cargo-zigbuild"));
        build.args(["zigbuild", "--release", "--locked", "--package", "peerdma-cli"]);
        build.args(["--target", &format!("{}.{C_LIBRARY}", target.triple())]);
        build.current_dir(tree);
        for (name, _) in std::env::vars_os().filter(|(name, _)| is_a_setting(name)) {
            build.env_remove(name);
        }
        build.env("PATH", self.search_path());
        build.env("CARGO_TARGET_DIR", &folder);
        build.env("CARGO_INCREMENTAL", "0");
        build.env("CARGO_ENCODED_RUSTFLAGS", renamed(tree, &folder)?.join("\x1f"));
        // Line tables would make the program three times as large; symbol names stay, for
        // backtraces and profilers.
        build.env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
        // A short message costs a tenth less; a user's own build shall rather be done soon.
        build
            .env("CARGO_PROFILE_RELEASE_LTO", "fat")
            .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "1");
        let cache = self.folder.join("cache");
        for name in ["CARGO_ZIGBUILD_CACHE_DIR", "ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"] {
            build.env(name, &cache);
        }
        run(&mut build).with_context(|| {
            let triple = target.triple();
            format!("for {triple} (is its Rust there? rustup target add {triple})")
        })?;
        Ok(folder.join(target.triple()).join("release/peerdma"))
    }

    fn search_path(&self) -> OsString {
        let mut path = self.folder.join("bin").into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        path
    }
}

/// Variables of the caller's that would change what is built.
fn is_a_setting(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    let begins = ["RUSTFLAGS", "CARGO_BUILD_", "CARGO_PROFILE_", "CARGO_TARGET_", "PEERDMA_"];
    let flags = ["CC", "CXX", "CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "AR", "RUSTC_WRAPPER"];
    begins.iter().any(|begin| name.starts_with(begin)) || flags.contains(&name.as_ref())
}

/// Flags for rustc by which paths of this machine have names that are the same everywhere.
fn renamed(tree: &Path, folder: &Path) -> Result<Vec<String>> {
    let home = PathBuf::from(std::env::var_os("HOME").context("no HOME")?);
    let cargo = std::env::var_os("CARGO_HOME").map_or(home.join(".cargo"), PathBuf::from);
    let mut names = vec![(tree.to_owned(), "/peerdma"), (folder.to_owned(), "/target")];
    // One for each registry, whose name is part of the path.
    let registries = std::fs::read_dir(cargo.join("registry/src")).into_iter().flatten().flatten();
    names.extend(registries.map(|registry| (registry.path(), "/registry")));
    // The last that fits counts, so what is inside another comes after it.
    names.sort_by_key(|(path, _)| path.components().count());
    let flag = |(path, name): (PathBuf, &str)| {
        let path = path.to_str().with_context(|| format!("{} is not UTF-8", path.display()))?;
        Ok(format!("--remap-path-prefix={path}={name}"))
    };
    names.into_iter().map(flag).collect()
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{} failed", command.get_program().display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_inside_another_folder_is_renamed_after_it() {
        let flags = renamed(Path::new("/a/tree"), Path::new("/a/tree/target/x")).unwrap();
        let at = |name: &str| flags.iter().position(|flag| flag.ends_with(name)).unwrap();
        assert!(at("=/peerdma") < at("=/target"), "{flags:?}");
    }

    #[test]
    fn a_callers_flags_do_not_count() {
        for name in ["RUSTFLAGS", "CARGO_PROFILE_RELEASE_LTO", "CC", "PEERDMA_PREBUILT_LIBRARY"] {
            assert!(is_a_setting(&name.into()), "{name}");
        }
        for name in ["PATH", "CARGO_HOME", "CARGO_NET_OFFLINE", "RUSTUP_HOME"] {
            assert!(!is_a_setting(&name.into()), "{name}");
        }
    }
}
