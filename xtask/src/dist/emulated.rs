//! A package for another processor, used here: Debian's own verbs programs for that processor run
//! under qemu-user on the libraries of the archive, a pingpong between two network namespaces among
//! them. qemu-user cannot steer packets to one of several processes, so each has a namespace of its
//! own.

use super::target::Target;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;
use vm::apt::Apt;

/// The release whose programs are run.
const RELEASE: &str = "bookworm";

/// With the emulator `$qemu`, its file system `$root`, and in this folder the unpacked archive
/// `$stem`.
const USE: &str = r#"
set -e
emulated="$qemu -L $root"
export HOME=$PWD
$emulated $stem/bin/peerdma --version
$emulated $stem/bin/peerdma env > variables
libraries=$PWD/$stem/lib/peerdma
grep -q "$libraries/libibverbs.so.1" variables
sysfs=$(sed -n "s/^export PEERDMA_SYSFS='\\(.*\\)'$/\\1/p" variables)
run="$emulated -E LD_PRELOAD=$libraries/libibverbs.so.1 -E LD_LIBRARY_PATH=$libraries"
run="$run -E PEERDMA_SYSFS=$sysfs -E PEERDMA_LOG=open"
one=pd-emulated-$$-1 other=pd-emulated-$$-2
trap 'ip netns del $one; ip netns del $other' EXIT
ip netns add $one
ip netns add $other
ip link add wire netns $one type veth peer name wire netns $other
ip -n $one addr add 198.18.9.1/24 dev wire
ip -n $other addr add 198.18.9.2/24 dev wire
for each in $one $other; do ip -n $each link set lo up; ip -n $each link set wire up; done
ip netns exec $one $run $root/usr/bin/ibv_devinfo > devices
grep 'hca_id:.*peerdma0' devices
pingpong="timeout 60 $run $root/usr/bin/ibv_rc_pingpong -g 0 -n 100"
ip netns exec $one $pingpong > server 2>&1 &
until ip netns exec $one ss -ltn | grep -q :18515; do kill -0 $! || { cat server; exit 1; }; done
ip netns exec $other $pingpong 198.18.9.1 > client
wait $!
tail -n 1 client
"#;

/// True when the programs run; they say what they did.
///
/// # Errors
/// A program that is needed is missing, or Debian's mirror cannot be reached.
pub fn run(archive: &Path, target: Target) -> Result<bool> {
    ensure!(system::is_root(), "network namespaces need root");
    let qemu = format!("qemu-{}", target.machine());
    ensure!(system::has(&qemu), "{qemu} is not installed (package qemu-user)");
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let folder = tree.join("target/emulated").join(target.machine());
    let (root, complete) = (folder.join("root"), folder.join("complete"));
    if !complete.is_file() {
        eprintln!("==> {RELEASE}'s programs for {}, once", target.machine());
        let apt = Apt::of_processor(&[RELEASE], Some(target.debian()), &folder.join("apt"))?;
        apt.unpack_all("ibverbs-utils", &root)?;
        fs::write(&complete, "")?;
    }
    let scratch = tempfile::tempdir()?;
    let unpacked = Command::new("tar")
        .args(["--zstd", "-xf"])
        .arg(archive)
        .arg("-C")
        .arg(scratch.path())
        .status()
        .context("tar")?;
    ensure!(unpacked.success(), "{} cannot be unpacked", archive.display());
    let name = archive.file_name().and_then(|name| name.to_str()).context("a name in UTF-8")?;
    let stem = name.strip_suffix(".tar.zst").context("an archive of ours")?;
    eprintln!("==> {name}, emulated");
    let mut shell = Command::new("sh");
    shell.args(["-c", USE]).current_dir(scratch.path());
    let status = shell.env("qemu", qemu).env("root", root).env("stem", stem).status()?;
    Ok(status.success())
}
