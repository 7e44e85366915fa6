//! Instruction counts of the data path's small pieces, which the repository keeps and the suite
//! holds: [`FILE`].
//!
//! A time differs from run to run and from machine to machine; how many instructions a piece takes
//! does not, as long as no packet comes by another thread. The pieces are those of hca's example
//! `instructions`, and callgrind counts them, in the program alone and not in the kernel.

mod callgrind;
mod kept;

use anyhow::{Context, Result, bail};
use kept::Kept;
use std::path::Path;
use std::process::Command;

/// The counts that are kept, from the workspace's root.
const FILE: &str = "tests/instruction-counts.txt";
/// What takes the counts of today for those to keep.
const ACCEPT: &str = "cargo xtask counts --accept";

/// Counts every piece and compares it with what is kept, or keeps it with `accept`; true when
/// nothing costs notably more.
///
/// # Errors
/// When a program is missing or fails, or [`FILE`] cannot be read.
pub fn run(accept: bool) -> Result<bool> {
    if let Some(reason) = lacks_valgrind() {
        bail!("{reason}");
    }
    let root = root()?;
    build(root)?;
    let now = callgrind::count(root)?;
    let machine = machine();
    if accept {
        std::fs::write(root.join(FILE), Kept { machine, pieces: now }.to_string())?;
        println!("{FILE} has the counts of today");
        return Ok(true);
    }
    let kept = Kept::read(&root.join(FILE))?;
    let mut ok = true;
    for verdict in kept.judge(&now) {
        ok &= verdict.is_well();
        println!("{verdict}");
    }
    if !ok {
        println!("Where that is what they shall cost: {ACCEPT}");
    }
    Ok(ok)
}

/// Why the suite cannot run here.
pub fn lacks() -> Option<String> {
    lacks_valgrind().or_else(|| {
        let kept = Kept::read(&root().ok()?.join(FILE)).ok()?;
        let machine = machine();
        let words = || format!("the counts are of {}, this is {machine}", kept.machine);
        (kept.machine != machine).then(words)
    })
}

fn lacks_valgrind() -> Option<String> {
    let words = || "valgrind is not installed (package valgrind)".to_owned();
    (!system::has("valgrind")).then(words)
}

fn root() -> Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")
}

fn build(root: &Path) -> Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let build = ["build", "--release", "--quiet", "--example", "instructions"];
    // With that package, what the example stands on is as it was built for the program.
    let call = [&build[..], &["--package", "hca", "--package", "test-support"]].concat();
    if !Command::new(cargo).current_dir(root).args(&call).status()?.success() {
        bail!("cargo {} failed", call.join(" "));
    }
    Ok(())
}

/// What else decides a count: the instructions there are, and the C library, whose `memcpy` and
/// allocator are part of every piece. Valgrind shows programs no AVX-512, whatever the CPU has, but
/// AVX2 only where that has it.
fn machine() -> String {
    let arch = std::env::consts::ARCH;
    let avx2 = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let avx2 = avx2.split_whitespace().any(|word| word == "avx2");
    let libc = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let libc = libc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let libc = libc.unwrap_or_else(|_| "another C library".to_owned());
    format!("{arch}{}, {libc}", if avx2 { " with AVX2" } else { "" })
}
