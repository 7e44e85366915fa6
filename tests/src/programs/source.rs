//! Programs that no distribution packages as the tests want them, built from the source that Debian
//! has, unmodified. Each is built once, below `target`.

use super::cuda_libraries;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Programs that a build needs, each with its package.
const PROGRAMS: [(&str, &str); 6] = [
    ("cc", "gcc"),
    ("make", "make"),
    ("autoconf", "autoconf"),
    ("automake", "automake"),
    ("libtoolize", "libtool"),
    ("xz", "xz-utils"),
];

/// A source's archive.
pub(super) struct Source {
    /// What its folder below `target` is called.
    pub(super) name: &'static str,
    /// Where it is on a mirror, below `pool/main`.
    pub(super) archive: &'static str,
    pub(super) sha256: &'static str,
    /// Headers that it needs, each with its package.
    pub(super) headers: &'static [(&'static str, &'static str)],
}

impl Source {
    /// The folder in which `script`, of which `files` are a part, built it, now if it is not yet:
    /// the source is in `source`. `LIBCUDA` names the folder of our libraries of CUDA to link to,
    /// which is another for each build of ours, and makes no difference to what is built.
    ///
    /// # Errors
    /// The reason why it cannot be had here. A test skips with it.
    ///
    /// # Panics
    /// When it is there, and is not built: that is a failed test.
    pub(super) fn built(&self, script: &str, files: &[PathBuf]) -> Result<PathBuf, String> {
        for (program, package) in PROGRAMS {
            if !crate::has(program) {
                return Err(format!("{program} is not installed (package {package})"));
            }
        }
        let arch = format!("{}-linux-gnu", std::env::consts::ARCH);
        for (header, package) in self.headers {
            let include = Path::new("/usr/include");
            let places = [include.join(header), include.join(&arch).join(header)];
            if !places.iter().any(|place| place.is_file()) {
                return Err(format!("{header} is not there (package {package})"));
            }
        }
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        fs::create_dir_all(&target).expect("target");
        let target = target.canonicalize().expect("target");
        // One maker at a time, also among test processes.
        let lock = File::create(target.join(format!("{}.lock", self.name))).expect("a lock");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("a lock");
        let folder = target.join(self.name);
        let complete = folder.join(format!("complete-{:016x}", self.made_of(script, files)));
        if !complete.is_file() {
            self.make(script, &folder)?;
            File::create(complete).expect("a file");
        }
        Ok(folder)
    }

    /// Another number for another source, script or file.
    fn made_of(&self, script: &str, files: &[PathBuf]) -> u64 {
        let mut hash = DefaultHasher::new();
        (self.sha256, script).hash(&mut hash);
        for file in files {
            fs::read(file).expect("a file of the script's").hash(&mut hash);
        }
        hash.finish()
    }

    fn make(&self, script: &str, folder: &Path) -> Result<(), String> {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder.join("source")).expect("a folder");
        let archive = folder.join("archive");
        self.fetch(&archive)
            .map_err(|error| format!("{} cannot be fetched: {error}", self.name))?;
        // Past the capture of the test's output: somebody waits.
        let _ =
            writeln!(std::io::stderr(), "{}: building it, once, for a minute or two", self.name);
        let mut unpack = Command::new("tar");
        unpack.arg("-xf").arg(&archive).args(["-C", "source", "--strip-components=1"]);
        let mut build = Command::new("timeout");
        build.args(["900", "sh", "-e", "-c", script]).env("LIBCUDA", cuda_libraries());
        for mut step in [unpack, build] {
            let done = run(step.current_dir(folder));
            done.unwrap_or_else(|error| panic!("{} is not built: {error}", self.name));
        }
        Ok(())
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
