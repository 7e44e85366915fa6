//! Packages on machines that have nothing but their distribution: each release of Debian gets a
//! fresh copy of a root file system with its own ibverbs-utils, the package is installed there, and
//! a plain user runs the demo and a verbs program of the distribution's. The libraries must be
//! those of the package, and nothing may be left once it is removed.

use crate::roots::{self, By};
use anyhow::{Context, Result, ensure};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// Debian 11, 12, 13, and the newest of everything.
const RELEASES: [&str; 4] = ["bullseye", "bookworm", "trixie", "sid"];
/// A verbs program, and what unpacks the archive.
const PACKAGES: &str = "ibverbs-utils,zstd";

/// What a plain user does with the program `$program`, whose libraries are in `$libraries`.
const USE: &str = r#"
set -e
"$program" --version
"$program" demo > demo.txt
head -n 2 demo.txt
grep -q '^Proven: ' demo.txt
"$program" run -- ibv_devinfo > devices.txt
grep 'hca_id:' devices.txt
grep -q 'hca_id:.*peerdma0' devices.txt
grep -q 'PORT_ACTIVE' devices.txt
"$program" run -- env > variables.txt
grep "^LD_PRELOAD=$libraries/libibverbs.so.1$" variables.txt
for cached in "$HOME"/.cache/peerdma/*/lib; do
    [ ! -e "$cached" ] || { echo "libraries were unpacked into $cached"; exit 1; }
done
"#;

/// What root does with the package `$package`: nothing of others is changed, and nothing is left.
const INSTALL: &str = r#"
set -e
dpkg --install "$package" > installed.txt 2>&1 || { cat installed.txt; exit 1; }
dpkg --verify
"#;
const REMOVE: &str = r#"
set -e
dpkg --verify
dpkg --purge peerdma > /dev/null
left=$(find / -xdev -name '*peerdma*' -not -path '/proc/*' -not -path '/home/*' -not -path '/root/*')
[ -z "$left" ] || { echo "left after removal: $left"; exit 1; }
"#;

/// True when both packages work everywhere; says for each release how it went.
///
/// # Errors
/// A root cannot be made.
pub fn run(archive: &Path, debian: &Path) -> Result<bool> {
    ensure!(system::is_root(), "another root file system needs root");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let folder = folder.join("target/roots/packages");
    fs::create_dir_all(&folder)?;
    let lock = File::create(folder.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let mut failed = Vec::new();
    for release in RELEASES {
        let root = folder.join(release);
        roots::make(release, PACKAGES, &root, false)?;
        for package in [archive, debian] {
            let name = name(package)?;
            eprintln!("==> {release}: {name}");
            if !tried(&root, package)? {
                failed.push(format!("{name} on {release}"));
            }
        }
    }
    for what in &failed {
        eprintln!("FAILED: {what}");
    }
    println!(
        "{} of {} trials of packages succeeded",
        RELEASES.len() * 2 - failed.len(),
        RELEASES.len() * 2
    );
    Ok(failed.is_empty())
}

/// Installs and uses a package in a copy of a root.
fn tried(root: &Path, package: &Path) -> Result<bool> {
    let copy = root.with_extension("copy");
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    let mut copied = Command::new("cp");
    let copied =
        copied.args(["-a", "--reflink=auto"]).args([root, &copy]).status().context("cp")?;
    ensure!(copied.success(), "{} cannot be copied", root.display());
    let home = copy.join(By::PlainUser.home().trim_start_matches('/'));
    fs::create_dir_all(&home)?;
    fs::copy(package, home.join(name(package)?))?;
    roots::give_away(&home)?;
    let done = lines(name(package)?).into_iter().try_fold(true, |ok, (by, line)| {
        let status =
            if ok { roots::enter(&copy, by, "", &line).status()? } else { return Ok(false) };
        Ok::<bool, std::io::Error>(status.success())
    });
    fs::remove_dir_all(&copy)?;
    Ok(done?)
}

/// What is done with a package, and by whom.
fn lines(name: &str) -> Vec<(By, String)> {
    let home = By::PlainUser.home();
    if let Some(stem) = name.strip_suffix(".tar.zst") {
        let place =
            format!("program={home}/{stem}/bin/peerdma libraries={home}/{stem}/lib/peerdma");
        return vec![(By::PlainUser, format!("tar --zstd -xf {name} || exit\n{place}\n{USE}"))];
    }
    let package = format!("package={home}/{name}");
    vec![
        (By::Root, format!("{package}\n{INSTALL}")),
        (By::PlainUser, format!("program=peerdma libraries=/usr/lib/peerdma\n{USE}")),
        (By::Root, REMOVE.to_owned()),
    ]
}

fn name(path: &Path) -> Result<&str> {
    path.file_name().and_then(|name| name.to_str()).context("a file's name in UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_installs_and_a_plain_user_runs() {
        let of = |name| lines(name).into_iter().map(|(by, _)| by).collect::<Vec<_>>();
        assert_eq!(of("peerdma-1-x86_64.tar.zst"), [By::PlainUser]);
        assert_eq!(of("peerdma_1_amd64.deb"), [By::Root, By::PlainUser, By::Root]);
    }
}
