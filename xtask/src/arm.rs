//! What it takes to compile for 64-bit ARM here, and to run that.

use std::path::Path;
use std::process::Command;

/// The processor and its C library, in Rust's words.
pub const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Where Debian's cross compiler has the C library.
const C_LIBRARY: &str = "/usr/aarch64-linux-gnu";

/// The program embeds libraries, which would have to be linked. To check that it compiles any file
/// will do; this one is beside its build script.
pub const EMBEDDED: [(&str, &str); 5] = [
    ("PEERDMA_PREBUILT_LIBRARY", "Cargo.toml"),
    ("PEERDMA_PREBUILT_CUDA", "Cargo.toml"),
    ("PEERDMA_PREBUILT_CUDART12", "Cargo.toml"),
    ("PEERDMA_PREBUILT_CUDART13", "Cargo.toml"),
    ("PEERDMA_PREBUILT_NVML", "Cargo.toml"),
];

/// Settings for cargo: a folder of its own to build in, Debian's cross compiler and emulator, and
/// what to embed.
pub const ENV: &[(&str, &str)] = &[
    ("CARGO_TARGET_DIR", "target/arm"),
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
    ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu"),
    EMBEDDED[0],
    EMBEDDED[1],
    EMBEDDED[2],
    EMBEDDED[3],
    EMBEDDED[4],
];

/// Has rustup fetch Rust's library for it where that is missing.
pub fn fetch() {
    if !has_rust() {
        eprintln!("Fetching Rust's library for {TARGET}");
        // Without it the suites that need it are skipped, and say so.
        let _ = Command::new("rustup").args(["target", "add", TARGET]).status();
    }
}

/// What is missing here, in words.
pub fn lacks() -> Option<String> {
    for (program, package) in
        [("aarch64-linux-gnu-gcc", "gcc-aarch64-linux-gnu"), ("qemu-aarch64", "qemu-user")]
    {
        if !system::has(program) {
            return Some(format!("{program} is not installed (package {package})"));
        }
    }
    if !Path::new(C_LIBRARY).join("lib").is_dir() {
        return Some("no C library for it is installed (package libc6-dev-arm64-cross)".to_owned());
    }
    let missing = format!("Rust's library for it is missing: rustup target add {TARGET}");
    (!has_rust()).then_some(missing)
}

fn has_rust() -> bool {
    let output =
        Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output();
    output.is_ok_and(|output| {
        let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success() && Path::new(&folder).is_dir()
    })
}
