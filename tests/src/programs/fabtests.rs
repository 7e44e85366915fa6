//! libfabric with CUDA, and its own tests, fabtests: no distribution packages either. Built once
//! from the source that Debian has of libfabric, unmodified; they stay under `target`.

use crate::{Run, c_library};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

const VERSION: &str = "2.1.0";
/// Of the source's archive.
const SHA256: &str = "1a66369772d5bb151737214af1c478993e969cf298e8f9ed369e7a2ab8d8c6df";
/// Providers that are left out, which have no part in what is tested.
const OTHERS: [&str; 15] = [
    "rxd", "efa", "psm2", "psm3", "opx", "usnic", "shm", "sm2", "mrail", "udp", "lpp", "ucx",
    "tcp", "sockets", "lnx",
];
/// Those that the tests run.
const PROGRAMS: [&str; 3] = ["fi_msg_pingpong", "fi_rma_bw", "fi_rdm_tagged_pingpong"];
/// What is read of CUDA's headers, and stands in for its runtime.
const CUDA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/c/fabtests");
/// Each program the build needs, with its package.
const NEEDED: [(&str, &str); 6] = [
    ("cc", "gcc"),
    ("make", "make"),
    ("autoconf", "autoconf"),
    ("automake", "automake"),
    ("libtoolize", "libtool"),
    ("xz", "xz-utils"),
];

/// The programs.
#[derive(Clone, Debug)]
pub struct Fabtests {
    folder: PathBuf,
    runtime: PathBuf,
}

impl Fabtests {
    /// The programs, built now if they are not yet.
    ///
    /// # Errors
    /// The reason why they cannot be had here. A test skips with it.
    pub fn built() -> Result<Fabtests, String> {
        for (program, package) in NEEDED {
            if !crate::has(program) {
                return Err(format!("{program} is not installed (package {package})"));
            }
        }
        for (header, package) in
            [("infiniband/verbs.h", "libibverbs-dev"), ("rdma/rdma_cma.h", "librdmacm-dev")]
        {
            if !Path::new("/usr/include").join(header).is_file() {
                return Err(format!("{header} is not there (package {package})"));
            }
        }
        // Tried once: where there is no network, to find that out may take minutes.
        static MADE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
        let made = MADE.get_or_init(|| make().map_err(|error| format!("no fabtests: {error}")));
        let (folder, library) = (made.clone()?, c_library("cudart")?);
        // By the name under which libfabric looks for it.
        let runtime = library.with_file_name("cuda-runtime");
        fs::create_dir_all(&runtime).expect("a folder for the library");
        let _ = std::os::unix::fs::symlink(&library, runtime.join("libcudart.so"));
        Ok(Fabtests { folder, runtime })
    }

    /// A line of a program and its arguments, on the software HCA and a software GPU.
    pub fn run(&self, line: &str) -> Run {
        let folder = self.folder.join("source/fabtests/benchmarks");
        let run = Run::hca(&format!("{}/{line}", folder.display())).option("--gpu").option("cuda");
        let libraries = format!("{}/lib:{}", self.folder.display(), self.runtime.display());
        run.env("LD_LIBRARY_PATH", libraries)
    }
}

fn make() -> std::io::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    fs::create_dir_all(&folder)?;
    let folder = folder.canonicalize()?;
    // One maker at a time, also among test processes.
    let lock = File::create(folder.join("fabtests.lock"))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    let folder = folder.join("fabtests");
    let complete = folder.join(format!("complete-{VERSION}"));
    if complete.is_file() {
        return Ok(folder);
    }
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("source"))?;
    fetch(&folder.join("source.tar.xz"))?;
    // Past the capture of the test's output: somebody waits.
    let _ = writeln!(std::io::stderr(), "libfabric {VERSION}: building it, once, for a minute");
    let without = OTHERS.map(|name| format!("--disable-{name}")).join(" ");
    let programs = PROGRAMS.map(|name| format!("benchmarks/{name}")).join(" ");
    let script = format!(
        "set -e\n\
         here=$PWD\n\
         tar -xf source.tar.xz -C source --strip-components=1\n\
         mkdir -p cuda/include && cp {CUDA}/*.h cuda/include\n\
         cd source && ./autogen.sh\n\
         ./configure --prefix=$here --disable-static --with-cuda=$here/cuda --enable-cuda-dlopen \
                     {without}\n\
         make -j2 install\n\
         cd fabtests && ./autogen.sh\n\
         ./configure --prefix=$here --with-libfabric=$here --with-cuda=$here/cuda\n\
         make -j2 {programs}\n"
    );
    let mut build = Command::new("timeout");
    build.args(["900", "sh", "-c", &script]).current_dir(&folder);
    build.env("CPPFLAGS", format!("-I{}/cuda/include", folder.display()));
    run(&mut build)?;
    File::create(complete)?;
    Ok(folder)
}

/// Fetches the source's archive from this machine's Debian mirror, by apt, which compares its hash.
fn fetch(archive: &Path) -> std::io::Result<()> {
    let mirror = vm::apt::mirror().ok_or_else(|| {
        std::io::Error::other("this machine takes no packages from a Debian mirror")
    })?;
    let mirror = mirror.trim_end_matches('/');
    let source = format!("{mirror}/pool/main/libf/libfabric/libfabric_{VERSION}.orig.tar.xz");
    let mut apt = Command::new("timeout");
    apt.args(["120", "/usr/lib/apt/apt-helper", "-o", "Acquire::http::Timeout=15"]);
    apt.args(["download-file", &source]).arg(archive).arg(format!("SHA256:{SHA256}"));
    run(&mut apt)
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
