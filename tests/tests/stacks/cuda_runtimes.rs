//! CUDA's runtime libraries, `libcudart.so.12` and `libcudart.so.13`, over the software GPU
//! (`peerdma run --gpu cuda`): by C programs that judge themselves, and beside NVIDIA's.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use system::{Run, Wheels, cuda_libraries, cuda13_program, has, judged, skip};

const VERSIONS: [u32; 2] = [12, 13];

fn cuda(program: &Path) -> Run {
    Run::hca(&program.display().to_string()).option("--gpu").option("cuda")
}

macro_rules! built {
    ($built:expr) => {
        match $built {
            Ok(built) => built,
            Err(reason) => skip!("{reason}"),
        }
    };
}

/// The runtime's calls, beside the driver's, with memory that an HCA and another process reach.
#[test]
fn the_runtime_is_the_drivers() {
    let program = built!(system::c_program("cuda_runtime"));
    for version in VERSIONS {
        let version = version.to_string();
        let said = judged(cuda(&program).env("LIBCUDART_VERSION", &version), 190);
        let kernel = "the kernel _Z5twicePi is not executed (cudaErrorNotSupported)";
        assert!(said.stderr.contains(kernel), "{said}");
        let run = Run::hca(&format!("{} none", program.display())).option("--gpu").option("cuda");
        let run = run.env("LIBCUDART_VERSION", &version);
        judged(run.env("CUDA_VISIBLE_DEVICES", ""), 4);
    }
}

#[test]
fn a_process_may_have_both() {
    let program = built!(system::c_program("cuda_two_runtimes"));
    judged(cuda(&program), 69);
}

/// What CUDA 13 changed, by its headers; functions that are not there are named once.
#[test]
fn cuda_13_is_as_its_headers_have_it() {
    let program = built!(cuda13_program("cuda_runtime_13"));
    let said = judged(cuda(&program).option("--log"), 130);
    for name in ["cudaMemcpy3DBatchAsync", "cudaDeviceGetExecutionCtx"] {
        let line = format!("{name} is not there: cudaErrorNotSupported");
        assert_eq!(said.stderr.matches(&line).count(), 1, "{said}");
    }
}

/// Symbols that a library exports, with their versions.
fn exports(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library).output();
    let output = output.expect("nm");
    assert!(output.status.success(), "{}", library.display());
    let text = String::from_utf8_lossy(&output.stdout);
    let symbols = text.lines().filter_map(|line| line.rsplit(' ').next());
    // The version itself, which some linkers write as a symbol.
    symbols.filter(|symbol| !symbol.starts_with("libcudart.so.")).map(str::to_owned).collect()
}

#[test]
fn each_name_is_exported_under_its_version() {
    if !has("nm") {
        skip!("nm is not installed (package binutils)");
    }
    let (wheels, ours) = (built!(Wheels::installed()), cuda_libraries());
    for (version, names) in [(12, 435), (13, 458)] {
        let nvidias = exports(&built!(wheels.runtime(version)));
        let ours = exports(&ours.join(format!("libcudart.so.{version}")));
        assert_eq!(ours, nvidias);
        assert_eq!(ours.len(), names);
        let node = format!("@@libcudart.so.{version}");
        assert!(ours.iter().all(|symbol| symbol.ends_with(&node)), "{ours:?}");
    }
}

/// The library without a version is CUDA 12's, as it was when there was no other.
#[test]
fn the_name_without_a_version_is_cuda_12s() {
    let link = cuda_libraries().join("libcudart.so");
    assert_eq!(std::fs::read_link(link).unwrap(), Path::new("libcudart.so.12"));
}

/// Names of all codes, as each library says them.
#[test]
fn errors_have_nvidias_names() {
    let (wheels, ours) = (built!(Wheels::installed()), cuda_libraries());
    let names = |library: &Path| {
        let run = wheels.run("cuda_error_names.py").arg(library).option("--gpu").option("cuda");
        run.finish().ok().stdout
    };
    for version in VERSIONS {
        let nvidias = names(&built!(wheels.runtime(version)));
        assert!(nvidias.lines().count() > 130, "{nvidias}");
        assert_eq!(names(&ours.join(format!("libcudart.so.{version}"))), nvidias);
    }
}
