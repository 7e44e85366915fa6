//! Debian releases after the one that most machines run, as root file systems: a newer C library,
//! newer rdma-core, perftest, UCX and libfabric. debootstrap makes each once; it stays under
//! `target`. The next release is made where a test wants it, the newest where somebody asks for it.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// A release, and what its root has beside the base. With Cython and Python's headers `pyverbs`
/// gets a module there ([`crate::conformance::other_root`]).
struct Release {
    name: &'static str,
    packages: &'static str,
}

const NEXT: Release = Release {
    name: "trixie",
    packages: "perftest,ibverbs-utils,ibverbs-providers,rdmacm-utils,ucx-utils,iproute2,\
               python3-pyverbs,python3-scapy,libfabric-dev,cython3,libpython3-dev",
};
const NEWEST: Release = Release {
    name: "sid",
    packages: "rdma-core,ibverbs-providers,iproute2,python3-pyverbs,python3-scapy,cython3,\
               libpython3-dev",
};
/// What one call of debootstrap may take.
const LIMIT: &str = "900";
/// Folder in the root with rdma-core's own suite, the Python package `tests`.
const SUITE: &str = "usr/share/suite";
/// Folder in the root with libfabric's headers and no others: a program that is compiled with this
/// machine's C library has that library's.
const FABRIC: &str = "usr/share/fabric";
/// Files that no program needs.
const SPARE: &str = "var/cache/apt var/lib/apt/lists usr/share/doc usr/share/man usr/share/locale";

/// The root of Debian 13 with RDMA programs, see [`crate::Container::of`].
///
/// # Errors
/// The reason why it cannot be had here. A test skips with it.
pub fn next_debian() -> Result<PathBuf, String> {
    // Tried once: where there is no network, to find that out may take minutes.
    static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    MADE.get_or_init(|| NEXT.make(false)).clone()
}

/// The root of Debian's sid with rdma-core's own suite, where [`make_newest_debian`] made it.
///
/// # Errors
/// The reason why it cannot be had here. A test skips with it.
pub fn newest_debian() -> Result<PathBuf, String> {
    check()?;
    let root = folder().map_err(|error| error.to_string())?.join(NEWEST.name);
    let missing = "Debian's sid is not there (`cargo xtask lab --rdma-core` fetches it)";
    NEWEST.mark(&root).is_file().then_some(root).ok_or_else(|| missing.to_owned())
}

/// Makes the root of Debian's sid, as it is today, unless there is one from an earlier day and it
/// need not be `afresh`.
///
/// # Errors
/// The reason why it cannot be had here.
pub fn make_newest_debian(afresh: bool) -> Result<PathBuf, String> {
    NEWEST.make(afresh)
}

/// Puts a Python package beside rdma-core's own suite in such a root, for its tests to import;
/// gives the suite's folder there.
///
/// # Panics
/// When it cannot be copied.
pub fn beside_suite(root: &Path, package: &Path) -> PathBuf {
    let copied = Command::new("cp").arg("-r").arg(package).arg(root.join(SUITE)).status();
    assert!(copied.is_ok_and(|status| status.success()), "{} is copied", package.display());
    suite()
}

/// The folder of rdma-core's own suite in such a root.
pub fn suite() -> PathBuf {
    Path::new("/").join(SUITE)
}

/// The folder of libfabric's headers in such a root, and its library.
pub(crate) fn libfabric(root: &Path) -> (PathBuf, PathBuf) {
    let library = format!("usr/lib/{}-linux-gnu/libfabric.so.1", std::env::consts::ARCH);
    (root.join(FABRIC), root.join(library))
}

/// Why another release's root cannot be used here, if so.
fn check() -> Result<(), String> {
    if !crate::is_root() {
        return Err("another root file system needs root".to_owned());
    }
    for program in ["debootstrap", "dpkg-deb", "unshare", "chroot"] {
        if !crate::has(program) {
            return Err(format!("{program} is not installed (package debootstrap)"));
        }
    }
    Ok(())
}

/// The folder in which roots are.
fn folder() -> std::io::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    fs::create_dir_all(&folder)?;
    folder.canonicalize()
}

impl Release {
    fn make(&self, afresh: bool) -> Result<PathBuf, String> {
        check()?;
        self.root(afresh).map_err(|error| format!("no Debian {}: {error}", self.name))
    }

    /// The file that says that a root is complete, and with which packages.
    fn mark(&self, root: &Path) -> PathBuf {
        root.join(format!("complete-{}", self.packages))
    }

    fn root(&self, afresh: bool) -> std::io::Result<PathBuf> {
        let folder = folder()?;
        // One maker at a time, also among test processes.
        let lock = File::create(folder.join(format!("{}.lock", self.name)))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        let root = folder.join(self.name);
        let complete = self.mark(&root);
        if complete.is_file() && !afresh {
            return Ok(root);
        }
        let _ = fs::remove_dir_all(&root);
        self.say("fetching and unpacking Debian's packages, once, for about a minute");
        // Unpacked is enough: what configuring the packages would add, takes minutes and serves no
        // program here.
        let mut fetch = Command::new("timeout");
        fetch.args([LIMIT, "debootstrap", "--foreign", "--variant=minbase"]);
        fetch.arg(format!("--include={}", self.packages)).arg(self.name).arg(&root);
        run(fetch.args(vm::apt::mirror()))?;
        let unpack =
            "for package in var/cache/apt/archives/*.deb; do dpkg-deb -x $package . || exit; done";
        run(Command::new("sh").args(["-c", unpack]).current_dir(&root))?;
        let keep = format!("mkdir {SUITE} && mv usr/share/doc/rdma-core/tests {SUITE}");
        let headers = format!("mkdir {FABRIC} && ln -s ../../include/rdma {FABRIC}/rdma");
        let tidy = format!("{keep} && {headers} && gunzip -f {SUITE}/tests/*.gz && rm -rf {SPARE}");
        run(Command::new("sh").args(["-c", &tidy]).current_dir(&root))?;
        File::create(complete)?;
        Ok(root)
    }

    /// Past the capture of the test's output: somebody waits.
    fn say(&self, what: &str) {
        let _ = writeln!(std::io::stderr(), "Debian {}: {what}", self.name);
    }
}

fn run(command: &mut Command) -> std::io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    // debootstrap says on its standard output what went wrong.
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    let words = command.get_args().take(2).map(|word| word.to_string_lossy());
    let words = words.collect::<Vec<_>>().join(" ");
    Err(std::io::Error::other(format!("{words}: {last} ({})", output.status)))
}
