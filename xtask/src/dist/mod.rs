//! `cargo xtask dist`: packages that install, in `target/dist`. One program is built against an old
//! C library (`build`), what belongs beside it is gathered (`contents`) and judged (`judge`), and
//! two archives are made of it: one that anybody unpacks (`tar`), one for Debian and its kin
//! (`deb`).
//!
//! The same sources give the same bytes, on any machine with the same compiler and the same
//! compressors: `--check` builds once more, from a clone at another path, and compares. `--try`
//! installs and uses both archives in root file systems of Debian releases (`trial`), or runs
//! another processor's under qemu-user (`emulated`).

mod build;
mod compress;
mod contents;
mod deb;
mod emulated;
mod files;
mod judge;
mod licences;
mod tar;
mod target;
mod trial;

use anyhow::{Context, Result, ensure};
use build::Zig;
use clap::Args;
use compress::Compressor;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use target::{C_LIBRARY, Target};

/// What to make, and what to do with it.
#[derive(Args)]
pub struct Wanted {
    /// The processor it is for, as Rust names it; for another than this machine's, qemu-user runs
    /// the program to ask it for its manual page
    #[arg(long, value_parser = Target::parse, default_value = Target::X86_64.triple())]
    target: Target,
    /// Build again, from a clone of the last commit at another path, and compare every byte
    #[arg(long)]
    check: bool,
    /// Install and use the packages in bare root file systems of Debian 11, 12, 13 and sid, as a
    /// plain user; those for another processor run Debian's programs under qemu-user. Needs root
    #[arg(long = "try")]
    trial: bool,
}

/// Packages of one program.
struct Packages {
    /// Unpacked anywhere.
    archive: PathBuf,
    /// For dpkg.
    debian: PathBuf,
}

/// True when what was asked for is so.
///
/// # Errors
/// A package cannot be made, or would not run where it is to.
pub fn run(wanted: &Wanted) -> Result<bool> {
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let target = tree.join("target");
    let zig = Zig::installed(&target)?;
    if !wanted.target.is_here() {
        crate::arm::fetch();
    }
    let time_s = time_s(tree)?;
    if wanted.check {
        ensure!(git(tree, &["status", "--porcelain"])?.is_empty(), "--check needs a clean tree");
    }
    let make = |tree: &Path, scratch: &Path, folder: &Path| {
        let program = zig.build(tree, scratch, wanted.target)?;
        pack(tree, &program, wanted.target, folder, time_s)
    };
    let packages = make(tree, &target.join("zig/build"), &target.join("dist"))?;
    for file in packages.each() {
        println!("{}", file.display());
    }
    let mut ok = true;
    if wanted.check {
        let folder = target.join("zig/again");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        let clone = folder.join("sources");
        git(tree, &["clone", "--quiet", "--shared", ".", path(&clone)?])?;
        let again = make(&clone, &folder.join("build"), &folder.join("dist"))?;
        ok &= packages.are(&again)?;
        fs::remove_dir_all(&folder)?;
    }
    if wanted.trial {
        ok &= match wanted.target.is_here() {
            true => trial::run(&packages.archive, &packages.debian)?,
            false => emulated::run(&packages.archive, wanted.target)?,
        };
    }
    Ok(ok)
}

impl Packages {
    fn each(&self) -> [&Path; 2] {
        [&self.archive, &self.debian]
    }

    /// Whether another build's are the same; says what it found.
    fn are(&self, others: &Packages) -> Result<bool> {
        let mut same = true;
        for (one, other) in self.each().into_iter().zip(others.each()) {
            let (one_bytes, other_bytes) = (fs::read(one)?, fs::read(other)?);
            let at = first_difference(&one_bytes, &other_bytes);
            let name = one.file_name().unwrap_or_default().display();
            match at {
                None => println!("{name}: {} bytes, the same twice", one_bytes.len()),
                Some(at) => println!("{name}: two builds differ, first at byte {at}"),
            }
            same &= at.is_none();
        }
        Ok(same)
    }
}

/// Makes both packages of a program in a folder.
fn pack(
    tree: &Path,
    program: &Path,
    target: Target,
    folder: &Path,
    time_s: u64,
) -> Result<Packages> {
    let (name, version) = ("peerdma", env!("CARGO_PKG_VERSION"));
    let portable = contents::portable(tree, program, target)?;
    judge::portable(tree, &portable)?;
    fs::create_dir_all(folder)?;

    let stem = format!("{name}-{version}-{}", target.machine());
    let archive = folder.join(format!("{stem}.tar.zst"));
    let tar = tar::archive(&portable, &format!("{stem}/"), time_s)?;
    fs::write(&archive, Compressor::Zstd.compress(&tar)?)?;

    let about = deb::About {
        name,
        version,
        architecture: target.debian(),
        c_library: C_LIBRARY,
        homepage: env!("CARGO_PKG_REPOSITORY"),
    };
    let debian = folder.join(format!("{name}_{version}_{}.deb", target.debian()));
    fs::write(&debian, deb::package(&about, &contents::debian(tree, &portable)?, time_s)?)?;
    Ok(Packages { archive, debian })
}

/// The time that every file has: `SOURCE_DATE_EPOCH`, or that of the last commit.
fn time_s(tree: &Path) -> Result<u64> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => git(tree, &["log", "-1", "--format=%ct"])
            .context("outside a clone, set SOURCE_DATE_EPOCH")?,
    };
    text.trim().parse().with_context(|| format!("{text:?} is not a time in seconds"))
}

fn git(tree: &Path, words: &[&str]) -> Result<String> {
    let output = Command::new("git").arg("-C").arg(tree).args(words).output().context("git")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {said}", words.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}

/// The first place where two texts differ.
fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let both = one.iter().zip(other).position(|(one, other)| one != other);
    both.or_else(|| (one.len() != other.len()).then(|| one.len().min(other.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_found_also_behind_the_shorter_ones_end() {
        assert_eq!(first_difference(b"abc", b"abc"), None);
        assert_eq!(first_difference(b"abc", b"axc"), Some(1));
        assert_eq!(first_difference(b"abc", b"ab"), Some(2));
    }
}
