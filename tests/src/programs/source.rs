//! Programs that no distribution packages as the tests want them, built from the source that Debian
//! has, unmodified. Each is built once, below `target`.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a build needs beside a mirror: programs and headers, each with its package.
const PROGRAMS: [(&str, &str); 6] = [
    ("cc", "gcc"),
    ("make", "make"),
    ("autoconf", "autoconf"),
    ("automake", "automake"),
    ("libtoolize", "libtool"),
    ("xz", "xz-utils"),
];
const HEADERS: [(&str, &str); 4] = [
    ("infiniband/verbs.h", "libibverbs-dev"),
    ("rdma/rdma_cma.h", "librdmacm-dev"),
    ("infiniband/umad.h", "libibumad-dev"),
    ("pci/pci.h", "libpci-dev"),
];

/// A source's archive.
pub(super) struct Source {
    /// What its folder below `target` is called.
    pub(super) name: &'static str,
    /// Where it is on a mirror, below `pool/main`.
    pub(super) archive: &'static str,
    pub(super) sha256: &'static str,
}

impl Source {
    /// The folder in which `script` built it, now if it is not yet: the source is in `source`.
    ///
    /// # Errors
    /// The reason why it cannot be had here. A test skips with it.
    pub(super) fn built(&self, script: &str) -> Result<PathBuf, String> {
        for (program, package) in PROGRAMS {
            if !crate::has(program) {
                return Err(format!("{program} is not installed (package {package})"));
            }
        }
        for (header, package) in HEADERS {
            if !Path::new("/usr/include").join(header).is_file() {
                return Err(format!("{header} is not there (package {package})"));
            }
        }
        self.build(script).map_err(|error| format!("no {}: {error}", self.name))
    }

    fn build(&self, script: &str) -> std::io::Result<PathBuf> {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        fs::create_dir_all(&target)?;
        let target = target.canonicalize()?;
        // One maker at a time, also among test processes.
        let lock = File::create(target.join(format!("{}.lock", self.name)))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        let folder = target.join(self.name);
        let complete = folder.join(format!("complete-{}", self.sha256));
        if complete.is_file() {
            return Ok(folder);
        }
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("source"))?;
        let archive = folder.join("archive");
        self.fetch(&archive)?;
        // Past the capture of the test's output: somebody waits.
        let _ = writeln!(std::io::stderr(), "{}: building it, once, for up to a minute", self.name);
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(&archive).args(["-C", "source", "--strip-components=1"]);
        run(unpack.current_dir(&folder))?;
        let mut build = Command::new("timeout");
        build.args(["900", "sh", "-e", "-c", script]).current_dir(&folder);
        run(&mut build)?;
        File::create(complete)?;
        Ok(folder)
    }

    /// Fetches it from this machine's Debian mirror, by apt, which compares its hash.
    fn fetch(&self, archive: &Path) -> std::io::Result<()> {
        let mirror = vm::apt::mirror().ok_or_else(|| {
            std::io::Error::other("this machine takes no packages from a Debian mirror")
        })?;
        let source = format!("{}/pool/main/{}", mirror.trim_end_matches('/'), self.archive);
        let mut apt = Command::new("timeout");
        apt.args(["120", "/usr/lib/apt/apt-helper", "-o", "Acquire::http::Timeout=15"]);
        apt.args(["download-file", &source]).arg(archive).arg(format!("SHA256:{}", self.sha256));
        run(&mut apt)
    }
}

fn run(command: &mut Command) -> std::io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    Err(std::io::Error::other(format!("{last} ({})", output.status)))
}
