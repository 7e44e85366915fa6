//! Programs of others that come as Python wheels: NIXL, Mooncake, UCXX and NVIDIA's Python
//! bindings, which stand on `libcuda`, an MPICH that knows libfabric, with mpi4py, and what judges
//! recipes. Where they are missing they are installed into a virtual environment below `target`,
//! once for each change of the list; tests that need them are skipped without it. mpi4py's tests
//! are in its source only, and lie beside. An environment of its own has what is as large as
//! PyTorch.

use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each with its version. What they depend on is listed too, as far as it is used: NIXL would bring
/// PyTorch.
const WHEELS: &[&str] = &[
    "nixl-cu12==1.5.1",
    // This and the two of CUDA 13 below are 250 MB unpacked.
    "nixl-cu13==1.5.1",
    "numpy==2.4.6",
    "cuda-bindings==13.5.0",
    "cuda-pathfinder==1.9.1",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-runtime==13.5.37",
    // Headers that those of the runtime include.
    "nvidia-cuda-crt==13.5.37",
    "nvidia-nvml-dev-cu12==12.9.79",
    "mooncake-transfer-engine==0.3.13.post1",
    // Not `libucx-cu12`: that one is built without InfiniBand. NIXL's wheel has a UCX that is not.
    "ucxx-cu12==0.52.0",
    "libucxx-cu12==0.52.0",
    // Before 5: that one ends in `MPI_Init` where libfabric tells an adapter's place on PCI, on
    // every machine, since the topology that its launcher hands on has no PCI devices.
    "mpich==4.3.2",
    MPI4PY,
    // What judges the recipes in `packaging`: of the first only GitHub's schema is used.
    "check-jsonschema==0.39.0",
    "jsonschema==4.26.0",
    "jsonschema-specifications==2025.9.1",
    "referencing==0.37.0",
    "rpds-py==2026.9.1",
    "attrs==26.1.0",
    "typing-extensions==4.16.0",
    "ruamel.yaml==0.19.1",
];
const MPI4PY: &str = "mpi4py==4.1.2";
/// For Python: unpacks the tests in a source archive, its first argument, into the second.
const UNPACK: &str = r#"
import sys, tarfile
archive = tarfile.open(sys.argv[1])
for member in archive.getmembers():
    member.name = member.name.partition("/")[2]
    if member.name.startswith("test/"):
        archive.extract(member, sys.argv[2])
"#;

/// Says in the environment's folder what is in it.
const LIST: &str = "installed.txt";

/// Installs them unless they are there. Where that fails, says so.
pub fn fetch() {
    if let Err(error) = installed() {
        eprintln!("Python wheels: {error:#}");
    }
}

fn installed() -> Result<()> {
    install("wheels", WHEELS, unpack_tests)
}

/// Installs `wheels` into the environment `target/NAME`, unless just these are there; `more` then
/// adds to it what is no wheel.
///
/// # Errors
/// When there is no Python, no room or no network.
pub fn install(name: &str, wheels: &[&str], more: fn(&Path) -> Result<()>) -> Result<()> {
    let folder = folder(name);
    let list = folder.join(LIST);
    if std::fs::read_to_string(&list).is_ok_and(|text| text == wheels.join("\n")) {
        return Ok(());
    }
    println!("installing Python wheels into {}", folder.display());
    let mut environment = Command::new("python3");
    environment.args(["-m", "venv", "--clear"]).arg(&folder);
    run(environment)?;
    let mut install = pip(&folder, "install");
    install.args(["--no-compile", "--no-cache-dir", "--only-binary", ":all:"]).args(wheels);
    run(install)?;
    more(&folder)?;
    std::fs::write(list, wheels.join("\n")).context("the list of wheels")
}

/// Fetches mpi4py's source and keeps its tests.
fn unpack_tests(folder: &Path) -> Result<()> {
    let source = folder.join("mpi4py");
    let mut download = pip(folder, "download");
    download.args(["--no-binary", "mpi4py", "--dest"]).arg(&source).arg(MPI4PY);
    run(download)?;
    let archive = source.join(MPI4PY.replace("==", "-") + ".tar.gz");
    let mut unpack = Command::new(folder.join("bin/python3"));
    unpack.args(["-c", UNPACK]).arg(archive).arg(&source);
    run(unpack)
}

/// pip in the environment. Where there is no network, that is soon known.
fn pip(folder: &Path, what: &str) -> Command {
    let mut pip = Command::new(folder.join("bin/pip"));
    pip.args([what, "--quiet", "--no-deps", "--disable-pip-version-check"]);
    pip.args(["--retries", "0", "--timeout", "15"]);
    pip
}

fn run(mut command: Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}

fn folder(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.parent().unwrap_or(root).join("target").join(name)
}
