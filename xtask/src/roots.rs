//! Root file systems of Debian releases with nothing but a C compiler, git and this machine's Rust
//! in them, as a new user's machine is: both commands of the README run there, on a clone of the
//! committed tree.
//!
//! A root is made once by debootstrap and kept under `target/roots`, with what runs installed and
//! built in it. It has mounts and processes of its own, this machine's network, and no systemd. The
//! registry that cargo keeps is this machine's, and is filled before: the root may not know who
//! signs for this machine's way to the network. A plain user of it has another clone, installs
//! nothing, and downloads nothing.

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a new user has installed, with the certificates that rustup came by.
const PACKAGES: &str = "gcc,libc6-dev,git,ca-certificates";
/// The clone, in its user's home; nothing is beside it.
const CLONE: &str = "peerdma";
/// Number of the plain user and his group, `nobody` and `nogroup`.
const PLAIN: &str = "65534";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Variables of this machine by which programs reach the network, and by which cargo is made
/// frugal.
const PASSED: [&str; 5] =
    ["http_proxy", "https_proxy", "no_proxy", "CARGO_BUILD_JOBS", "CARGO_INCREMENTAL"];

/// A release of Debian.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Release {
    /// 12
    Bookworm,
    /// 13
    Trixie,
    /// The newest of everything, the C library too
    Sid,
}

impl Release {
    fn name(self) -> &'static str {
        match self {
            Release::Bookworm => "bookworm",
            Release::Trixie => "trixie",
            Release::Sid => "sid",
        }
    }
}

/// Who does something in a root.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    Root,
    /// An account without any privilege.
    PlainUser,
}

impl By {
    pub fn home(self) -> &'static str {
        match self {
            By::Root => "/root",
            By::PlainUser => "/home/plain",
        }
    }

    /// The switch of unshare(1) for a network of his own: he downloads nothing, and cannot make one
    /// himself where the machine's port 4791 is another user's.
    fn network(self) -> Option<&'static str> {
        match self {
            By::Root => None,
            By::PlainUser => Some("--net"),
        }
    }

    /// Words before a command of his.
    fn switch(self) -> String {
        match self {
            By::Root => String::new(),
            By::PlainUser => format!("setpriv --reuid={PLAIN} --regid={PLAIN} --clear-groups"),
        }
    }
}

/// What to do in a root.
pub enum Task {
    /// Both commands of the README.
    Readme,
    /// The test command, with only the suites whose name contains this.
    Suites(String),
    /// A command in the clone.
    Command(Vec<String>),
}

impl Task {
    /// One line for each command, for sh(1). Root installs what the tests need, so nothing may be
    /// skipped that need not be; a plain user's skips are counted only.
    fn lines(&self, by: By) -> Vec<String> {
        let test = match by {
            By::Root => "cargo xtask test",
            By::PlainUser => "cargo xtask test --no-install",
        };
        match self {
            Task::Readme => {
                let strict = if by == By::Root { " --strict" } else { "" };
                vec!["cargo run --release -- demo".into(), format!("{test}{strict}")]
            }
            Task::Suites(only) => vec![format!("{test} --only {}", quoted(only))],
            Task::Command(words) => {
                vec![words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")]
            }
        }
    }
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Makes the root of a release where it is missing, or `afresh`, brings its clone to this tree's
/// last commit and does a task in it; true when each command succeeded.
///
/// # Errors
/// When the root cannot be made or entered.
pub fn run(release: Release, afresh: bool, by: By, task: &Task) -> Result<bool> {
    ensure!(system::is_root(), "another root file system needs root");
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let folder = tree.join("target/roots");
    fs::create_dir_all(&folder)?;
    // One user at a time: two would build in one clone.
    let lock = File::create(folder.join(format!("{}.lock", release.name())))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let root = folder.join(release.name());
    make(release.name(), PACKAGES, &root, afresh)?;
    let home = root.join(by.home().trim_start_matches('/'));
    clone(tree, &home.join(CLONE))?;
    let toolchain = Toolchain::of_this_machine()?;
    fetch(&home.join(CLONE))?;
    if by == By::PlainUser {
        give_away(&home)?;
    }
    let mut ok = true;
    for line in task.lines(by) {
        eprintln!("==> {}: {line}", release.name());
        ok &= inside(&root, &toolchain, by, &line).status()?.success();
    }
    Ok(ok)
}

/// Makes the root of a release with packages, by their names with commas between, where it is
/// missing or `afresh`.
///
/// # Errors
/// debootstrap is missing or fails.
pub fn make(release: &str, packages: &str, root: &Path, afresh: bool) -> Result<()> {
    // Beside the root, not in it: a root that is half made has none.
    let complete = root.with_extension(format!("has-{packages}"));
    if complete.is_file() && !afresh {
        return Ok(());
    }
    let _ = fs::remove_file(&complete);
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| format!("removing {}", root.display()))?;
    }
    eprintln!("==> {release}: debootstrap, once, for some minutes");
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", &format!("--include={packages}"), release]);
    command.arg(root).args(vm::apt::mirror()).stdout(std::process::Stdio::null());
    if !command.status().context("debootstrap")?.success() {
        let log = root.join("debootstrap/debootstrap.log");
        bail!("debootstrap failed; its log is {}", log.display());
    }
    File::create(complete)?;
    Ok(())
}

/// Brings the clone to the tree's last commit. What was built in it stays.
fn clone(tree: &Path, clone: &Path) -> Result<()> {
    let git = |at: &Path, words: &[&str]| -> Result<Vec<u8>> {
        // A plain user's clone is his.
        let mut git = Command::new("git");
        let output = git.args(["-c", "safe.directory=*", "-C"]).arg(at).args(words).output();
        let output = output.context("git")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "git {}: {said}", words.join(" "));
        Ok(output.stdout)
    };
    if !git(tree, &["status", "--porcelain"])?.is_empty() {
        eprintln!("==> what is not committed is not in the clone");
    }
    if !clone.join(".git").is_dir() {
        fs::create_dir_all(clone)?;
        git(clone, &["init", "--quiet"])?;
    }
    let tree = tree.to_str().context("a path in UTF-8")?;
    git(clone, &["fetch", "--quiet", "--no-tags", tree, "HEAD"])?;
    git(clone, &["checkout", "--quiet", "--force", "--detach", "FETCH_HEAD"])?;
    Ok(())
}

/// Fills this machine's registry with what cargo needs in a clone, so that nobody has to download
/// anything there.
fn fetch(clone: &Path) -> Result<()> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    for flags in ["", "--cfg loom"] {
        let mut cargo = Command::new("cargo");
        cargo.env("RUSTFLAGS", flags);
        cargo.args(["fetch", "--quiet", "--locked", "--target", &target]);
        let status = cargo.current_dir(clone).status().context("cargo fetch")?;
        ensure!(status.success(), "what the workspace needs cannot be fetched");
    }
    Ok(())
}

/// Makes a home the plain user's.
///
/// # Errors
/// This is not root.
pub fn give_away(home: &Path) -> Result<()> {
    let owner = format!("{PLAIN}:{PLAIN}");
    let status = Command::new("chown").args(["-R", &owner]).arg(home).status().context("chown")?;
    ensure!(status.success(), "{} cannot be given away", home.display());
    Ok(())
}

/// Where this machine has its Rust, and the registry that cargo keeps.
struct Toolchain {
    rustup: PathBuf,
    cargo: PathBuf,
}

impl Toolchain {
    fn of_this_machine() -> Result<Toolchain> {
        let home = std::env::var_os("HOME").context("no HOME")?;
        let of = |name: &str, folder: &str| {
            std::env::var_os(name).map_or(Path::new(&home).join(folder), PathBuf::from)
        };
        let found =
            Toolchain { rustup: of("RUSTUP_HOME", ".rustup"), cargo: of("CARGO_HOME", ".cargo") };
        for folder in [&found.rustup, &found.cargo.join("bin")] {
            ensure!(folder.is_dir(), "no {}: Rust by rustup is needed", folder.display());
        }
        Ok(found)
    }
}

/// Makes `$1` the root of a mount namespace and runs the shell line `$2` in `$FOLDER`, behind the
/// words `$3`. With `$RUSTUP_HOME` and `$CARGO_HOME` Rust is where this machine has it. `/` is a
/// mount point, and nothing of this machine's files is left but what is bound.
const ENTER: &str = r#"
set -e
cd "$1"
mount --bind . .
cd "$1"
mount -t proc proc proc
[ -z "$OWN_NETWORK" ] || ip link set lo up
for folder in sys dev; do mount --rbind /$folder $folder; done
mount -t tmpfs -o mode=755 none run
if [ -n "$CARGO_HOME" ]; then
    mkdir -p "$CARGO_HOME/registry"
    for folder in "$RUSTUP_HOME" "$CARGO_HOME/bin" "$CARGO_HOME/registry"; do
        mkdir -p ".$folder"
        mount --bind "$folder" ".$folder"
    done
    # Rust is often in root's home, and every user of the root finds it there. Some crates bring
    # files that only their owner may read.
    chmod go+x root
    chmod -R go+rX "$CARGO_HOME/registry"
fi
cp -L /etc/resolv.conf etc/resolv.conf
# As an installer does: programs look their own machine up, by its name and as localhost.
grep -qsw localhost etc/hosts || echo "127.0.0.1 localhost" >> etc/hosts
name=$(cat /proc/sys/kernel/hostname)
grep -qsw -- "$name" etc/hosts || echo "127.0.1.1 $name" >> etc/hosts
pivot_root . mnt
umount -l /mnt
cd "$FOLDER"
exec $3 sh -c "$2"
"#;

/// A shell line in the clone, with Rust.
fn inside(root: &Path, toolchain: &Toolchain, by: By, line: &str) -> Command {
    let mut command = enter(root, by, CLONE, line);
    command
        .env("RUSTUP_HOME", &toolchain.rustup)
        .env("CARGO_HOME", &toolchain.cargo)
        .env("PATH", format!("{}/bin:{PATH}", toolchain.cargo.display()));
    if by == By::PlainUser {
        command.env("CARGO_NET_OFFLINE", "true");
    }
    for name in PASSED {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    command
}

/// A shell line in a root, in a folder of the user's home.
pub fn enter(root: &Path, by: By, folder: &str, line: &str) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"])
        .args(by.network())
        .args(["sh", "-c", ENTER, "enter"])
        .arg(root)
        .arg(line)
        .arg(by.switch())
        .env_clear()
        .env("HOME", by.home())
        .env("FOLDER", Path::new(by.home()).join(folder))
        .env("LANG", "C.UTF-8")
        .env("PATH", PATH);
    if let Some(network) = by.network() {
        command.env("OWN_NETWORK", network);
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_shell_whole() {
        let task = Task::Command(vec!["echo".into(), "it's  one".into(), "$HOME".into()]);
        let output = Command::new("sh").args(["-c", &task.lines(By::Root)[0]]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "it's  one $HOME\n");
    }

    #[test]
    fn the_readmes_commands_are_what_runs() {
        let readme = include_str!("../../README.md");
        for line in Task::Readme.lines(By::Root) {
            // As CI calls it.
            let line = line.trim_end_matches(" --strict");
            assert!(readme.contains(line), "{line}");
        }
    }
}
