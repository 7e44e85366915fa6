//! Builds the drop-in libraries (libibverbs, and NVIDIA's; release profile) by a nested cargo
//! and hands their paths to the program, which embeds them.
//!
//! The nested build has a folder of its own in the target folder, so it never waits for the lock of
//! the outer one, and is done once for all profiles. It takes part in the outer job server, gets
//! `--offline`, `--locked` and `--frozen` when the outer cargo was, and is a matter of a fraction
//! of a second when nothing changed. Packagers who build a library themselves name it in
//! `PEERDMA_PREBUILT_LIBRARY`, `PEERDMA_PREBUILT_CUDA`, `PEERDMA_PREBUILT_CUDART12`,
//! `PEERDMA_PREBUILT_CUDART13` or `PEERDMA_PREBUILT_NVML`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library.
struct Library {
    package: &'static str,
    file: &'static str,
    /// Variable that names one to embed instead of building it.
    prebuilt: &'static str,
    /// Variable by which the program is told where it is.
    embedded: &'static str,
}

const LIBRARIES: [Library; 5] = [
    Library {
        package: "peerdma-verbs",
        file: "libibverbs.so",
        prebuilt: "PEERDMA_PREBUILT_LIBRARY",
        embedded: "PEERDMA_EMBEDDED_LIBRARY",
    },
    Library {
        package: "peerdma-libcuda",
        file: "libcuda_driver.so",
        prebuilt: "PEERDMA_PREBUILT_CUDA",
        embedded: "PEERDMA_EMBEDDED_CUDA",
    },
    Library {
        package: "peerdma-libcudart12",
        file: "libcuda_runtime12.so",
        prebuilt: "PEERDMA_PREBUILT_CUDART12",
        embedded: "PEERDMA_EMBEDDED_CUDART12",
    },
    Library {
        package: "peerdma-libcudart13",
        file: "libcuda_runtime13.so",
        prebuilt: "PEERDMA_PREBUILT_CUDART13",
        embedded: "PEERDMA_EMBEDDED_CUDART13",
    },
    Library {
        package: "peerdma-libnvml",
        file: "libnvml_driver.so",
        prebuilt: "PEERDMA_PREBUILT_NVML",
        embedded: "PEERDMA_EMBEDDED_NVML",
    },
];

fn main() {
    let built: Vec<&Library> =
        LIBRARIES.iter().filter(|library| std::env::var_os(library.prebuilt).is_none()).collect();
    let folder = (!built.is_empty()).then(|| build(&built));
    println!("cargo:rerun-if-changed=build.rs");
    for library in &LIBRARIES {
        let variable = library.prebuilt;
        println!("cargo:rerun-if-env-changed={variable}");
        let path = match (std::env::var_os(variable), &folder) {
            (Some(path), _) => std::fs::canonicalize(&path)
                .unwrap_or_else(|error| fail(&format!("{variable}={}: {error}", path.display()))),
            (None, Some(folder)) => folder.join(library.file),
            (None, None) => continue,
        };
        if !path.is_file() {
            fail(&format!("{} is not at {}", library.file, path.display()));
        }
        println!("cargo:rerun-if-changed={}", path.display());
        println!("cargo:rustc-env={}={}", library.embedded, path.display());
    }
}

/// Builds libraries and answers with the folder that they are in.
fn build(libraries: &[&Library]) -> PathBuf {
    let manifest_dir = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let workspace = manifest_dir.ancestors().nth(2).expect("crates/cli lies two folders deep");
    let out = PathBuf::from(variable("OUT_DIR"));
    let target = variable("TARGET");
    let target_dir = match out.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file()) {
        Some(whole) => whole.join("libraries"),
        None => out.join("library"),
    };
    let switches = outer_switches();

    watch(workspace, &switches, libraries);
    let packages = libraries.iter().flat_map(|library| ["--package", library.package]);
    let status = cargo(&["build", "--quiet", "--release"])
        .args(packages)
        .arg("--manifest-path")
        .arg(workspace.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target_dir)
        .args(["--target", &target])
        .args(&switches)
        // Line tables would triple the size of what every program unpacks; symbol names stay, for
        // profilers.
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => {
            fail(&format!("building the libraries failed ({status}); its messages are above"))
        }
        Err(error) => fail(&format!("cannot start cargo to build the libraries: {error}")),
    }
    target_dir.join(&target).join("release")
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| fail(&format!("cargo did not set {name}")))
}

fn fail(message: &str) -> ! {
    println!("cargo:error={message}");
    std::process::exit(1)
}

/// A nested cargo without what the outer one set for this build script only.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    for name in [
        // The target folder and triple are given as arguments.
        "CARGO_TARGET_DIR",
        "CARGO_BUILD_TARGET_DIR",
        "CARGO_BUILD_BUILD_DIR",
        "CARGO_BUILD_TARGET",
        // Under clippy the outer build wraps the compiler; the library must be compiled, not
        // checked.
        "RUSTC_WORKSPACE_WRAPPER",
        "CARGO_BUILD_RUSTC_WORKSPACE_WRAPPER",
        "CLIPPY_ARGS",
    ] {
        command.env_remove(name);
    }
    // Coverage and sanitizer flags meant for the outer program must not reach a library that is
    // preloaded elsewhere; ordinary RUSTFLAGS arrive here encoded and do.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PROFILE_DEV")) {
            command.env_remove(name);
        }
    }
    command
}

/// Which of `--offline`, `--locked` and `--frozen` the outer cargo was given. Cargo does not tell
/// build scripts, but it is the parent process. (Set by environment or configuration, they reach
/// the nested cargo the same way.)
fn outer_switches() -> Vec<String> {
    let parent = std::os::unix::process::parent_id();
    let command_line = std::fs::read(format!("/proc/{parent}/cmdline")).unwrap_or_default();
    command_line
        .split(|&byte| byte == 0)
        .map(String::from_utf8_lossy)
        .take_while(|argument| argument != "--")
        .filter(|argument| matches!(argument.as_ref(), "--offline" | "--locked" | "--frozen"))
        .map(String::from)
        .collect()
}

/// Reruns this script when the libraries' sources change: their packages and the packages of the
/// workspace that they depend on.
fn watch(workspace: &Path, switches: &[String], libraries: &[&Library]) {
    println!("cargo:rerun-if-changed={}", workspace.join("Cargo.toml").display());
    println!("cargo:rerun-if-changed={}", workspace.join("Cargo.lock").display());
    let output = cargo(&["metadata", "--format-version=1", "--no-deps"])
        .arg("--manifest-path")
        .arg(workspace.join("Cargo.toml"))
        .args(switches)
        .output();
    let output = match output {
        Ok(output) if output.status.success() => output.stdout,
        Ok(output) => fail(&format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr))),
        Err(error) => fail(&format!("cannot start cargo metadata: {error}")),
    };
    for folder in local_packages(&output, libraries) {
        for part in ["src", "build.rs", "library.rs", "Cargo.toml", "entry-points.txt"] {
            let path = folder.join(part);
            if path.exists() {
                println!("cargo:rerun-if-changed={}", path.display());
            }
        }
    }
}

/// Folders of the libraries' packages and of all workspace packages they depend on, by the metadata
/// of the workspace.
fn local_packages(metadata: &[u8], libraries: &[&Library]) -> BTreeSet<PathBuf> {
    let metadata: serde_json::Value = serde_json::from_slice(metadata)
        .unwrap_or_else(|error| fail(&format!("cargo metadata: {error}")));
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let by_name: BTreeMap<&str, &serde_json::Value> =
        packages.iter().filter_map(|package| Some((package["name"].as_str()?, package))).collect();
    let mut folders = BTreeSet::new();
    let mut todo: Vec<&str> = libraries.iter().map(|library| library.package).collect();
    while let Some(name) = todo.pop() {
        let Some(package) = by_name.get(name) else { continue };
        let manifest = package["manifest_path"].as_str().map(Path::new);
        let Some(folder) = manifest.and_then(Path::parent) else { continue };
        if folders.insert(folder.to_owned()) {
            let dependencies = package["dependencies"].as_array().into_iter().flatten();
            todo.extend(
                dependencies
                    .filter(|dependency| !dependency["path"].is_null())
                    .filter_map(|d| d["name"].as_str()),
            );
        }
    }
    folders
}
