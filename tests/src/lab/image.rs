//! The guest's RAM disk: busybox, the RoCE modules of its kernel and the verbs programs of this machine with the libraries they
//! need.

use super::kernel::Kernel;
use crate::apt::run;
use anyhow::{Context, Result, bail};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Distribution packages that the lab needs.
pub const PACKAGES: &[&str] = &["qemu-system-x86", "busybox-static", "cpio", "xz-utils", "zstd"];

const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "crc32_pclmul",
    "crc32_generic",
    "rdma_rxe",
    "ib_uverbs",
    "rdma_ucm",
    "vgem",
    "veth",
    "8021q",
];

const PROGRAMS: &[&str] = &[
    "ip",
    "rdma",
    "timeout",
    "ibv_devices",
    "ibv_devinfo",
    "ibv_rc_pingpong",
    "ibv_uc_pingpong",
    "ibv_ud_pingpong",
    "ibv_srq_pingpong",
    "ib_write_bw",
    "ib_write_lat",
    "ib_read_bw",
    "ib_read_lat",
    "ib_send_bw",
    "ib_send_lat",
    "ib_atomic_bw",
    "ib_atomic_lat",
    "rping",
    // For files of sysfs in a program that is not statically linked, as busybox is.
    "cat",
];

/// Libraries that programs load by name: no listing of what they need shows them. glibc's `pthread_exit` wants this one.
const LIBRARIES: &[&str] = &["libgcc_s.so.1"];

const INIT: &str = include_str!("init.sh");

/// Writes the RAM disk for a kernel to the file `out`. The programs `extra` are added to it, in `/usr/bin`.
///
/// # Errors
/// What is missing, in words.
pub(super) fn build(kernel: &Kernel, extra: &[&Path], out: &Path) -> Result<()> {
    for program in ["qemu-system-x86_64", "busybox", "cpio"] {
        if !crate::has(program) {
            bail!("{program} is not installed (packages: {})", PACKAGES.join(" "));
        }
    }
    let staging = tempfile::tempdir()?;
    let root = staging.path();
    for folder in ["bin", "etc", "proc", "sys", "dev", "tmp", "run", "lib/modules"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    let modules = kernel.place_modules(MODULES, &root.join("lib/modules"))?;
    if !modules.iter().any(|name| name == "rdma_rxe") {
        bail!("the kernel's packages have no rdma_rxe module");
    }
    let mut files = BTreeSet::new();
    for program in PROGRAMS {
        add_program(program, &mut files)?;
    }
    for program in extra {
        let mut needed = BTreeSet::new();
        add_with_libraries(program, &mut needed)?;
        needed.remove(*program);
        files.append(&mut needed);
    }
    for library in providers()?.into_iter().chain(libraries()?) {
        add_with_libraries(&library, &mut files)?;
    }
    for file in &files {
        let place = root.join(file.strip_prefix("/")?);
        std::fs::create_dir_all(place.parent().context("no folder")?)?;
        std::fs::copy(file, place)?;
    }
    // Only the provider that is there: libibverbs complains about each one that is named and missing.
    let named = root.join("etc/libibverbs.d");
    std::fs::create_dir_all(&named)?;
    std::fs::copy("/etc/libibverbs.d/rxe.driver", named.join("rxe.driver"))?;
    std::fs::copy(find_program("busybox")?, root.join("bin/busybox"))?;
    std::fs::create_dir_all(root.join("usr/bin"))?;
    for program in extra {
        let name = program.file_name().context("a program without a name")?;
        std::fs::copy(program, root.join("usr/bin").join(name))?;
    }
    let init = root.join("init");
    std::fs::write(&init, INIT)?;
    run(Command::new("chmod").arg("755").arg(&init))?;
    let pack = "find . | cpio -o -H newc --quiet | gzip -1 > \"$0\"";
    run(Command::new("sh").current_dir(root).args(["-c", pack]).arg(out))?;
    Ok(())
}

fn find_program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/sbin", "/usr/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .with_context(|| format!("{name} is not installed"))
}

fn add_program(name: &str, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    add_with_libraries(&find_program(name)?, files)
}

fn add_with_libraries(file: &Path, files: &mut BTreeSet<PathBuf>) -> Result<()> {
    files.insert(file.to_owned());
    let listing = run(Command::new("ldd").arg(file))?;
    let libraries = listing.split_whitespace().filter(|word| word.starts_with('/'));
    files.extend(libraries.map(PathBuf::from));
    Ok(())
}

/// rxe's provider library of the distribution's rdma-core.
fn providers() -> Result<Vec<PathBuf>> {
    let listing = run(Command::new("dpkg").args(["-L", "ibverbs-providers"]))?;
    Ok(listing.lines().filter(|l| l.contains("/librxe")).map(PathBuf::from).collect())
}

/// The files of [`LIBRARIES`] that this machine has, of whichever kind its `ldconfig` names first: the native one.
fn libraries() -> Result<Vec<PathBuf>> {
    let cache = run(Command::new(find_program("ldconfig")?).arg("-p"))?;
    let file = |name: &&str| {
        let line = cache.lines().find(|line| line.split_whitespace().next() == Some(name))?;
        Some(PathBuf::from(line.split_once(" => ")?.1))
    };
    Ok(LIBRARIES.iter().filter_map(file).collect())
}
