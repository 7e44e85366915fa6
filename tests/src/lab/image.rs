//! The guest's image: the distribution's kernel package, unpacked, and a RAM disk of busybox, the RoCE modules and
//! the verbs programs of this machine with the libraries they need.

use super::{Image, cache};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, BTreeSet};
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

/// The image for this machine: the kernel is fetched on first use and kept. The programs `extra` are added to the RAM
/// disk, in `/usr/bin`.
///
/// # Errors
/// What is missing, in words.
pub fn prepare(extra: &[&Path]) -> Result<Image> {
    if std::env::consts::ARCH != "x86_64" {
        bail!("the lab's guest is an x86-64 one");
    }
    for program in ["qemu-system-x86_64", "busybox", "cpio", "dpkg-deb", "apt-get"] {
        if !crate::has(program) {
            bail!("{program} is not installed (packages: {})", PACKAGES.join(" "));
        }
    }
    std::fs::create_dir_all(cache())?;
    // One builder at a time, also among test processes.
    let lock = std::fs::File::create(cache().join("lock"))?;
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
    let tree = cache().join("kernel");
    if !tree.join("complete").is_file() {
        let _ = std::fs::remove_dir_all(&tree);
        unpack_kernel(&tree)?;
        std::fs::write(tree.join("complete"), "")?;
    }
    let kernel = only_entry(&tree.join("boot"), "vmlinuz-")?;
    let initrd = cache().join("initrd.gz");
    let half = cache().join("initrd.half");
    build_ram_disk(&tree, extra, &half)?;
    std::fs::rename(&half, &initrd)?;
    Ok(Image { kernel, initrd })
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Packages with the newest kernel of this distribution: Debian keeps modules with the image, Ubuntu apart.
fn kernel_packages() -> Result<Vec<String>> {
    for meta in ["linux-image-amd64", "linux-image-generic"] {
        let Ok(depends) = run(Command::new("apt-cache").args(["depends", meta])) else { continue };
        let names: Vec<String> = depends
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Depends: "))
            .filter(|name| name.starts_with("linux-"))
            .map(str::to_owned)
            .collect();
        let Some(image) = names.iter().find(|name| name.starts_with("linux-image-")) else {
            continue;
        };
        let version = &image["linux-image-".len()..];
        let mut packages = names.clone();
        for extra in ["linux-modules-", "linux-modules-extra-"] {
            let name = format!("{extra}{version}");
            if run(Command::new("apt-cache").args(["show", &name])).is_ok_and(|s| !s.is_empty()) {
                packages.push(name);
            }
        }
        packages.sort();
        packages.dedup();
        packages.retain(|name| !name.contains("firmware") && !name.contains("microcode"));
        return Ok(packages);
    }
    bail!("no kernel package is known to apt (run `apt-get update`)")
}

fn unpack_kernel(tree: &Path) -> Result<()> {
    let packages = kernel_packages()?;
    let downloads = tempfile::tempdir()?;
    run(Command::new("apt-get")
        .current_dir(downloads.path())
        .args(["download", "-q"])
        .args(&packages))?;
    std::fs::create_dir_all(tree)?;
    for entry in std::fs::read_dir(downloads.path())? {
        run(Command::new("dpkg-deb").arg("-x").arg(entry?.path()).arg(tree))?;
    }
    Ok(())
}

fn only_entry(folder: &Path, prefix: &str) -> Result<PathBuf> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(prefix)))
        .with_context(|| format!("no {prefix}* in {}", folder.display()))
}

fn build_ram_disk(tree: &Path, extra: &[&Path], out: &Path) -> Result<()> {
    let staging = tempfile::tempdir()?;
    let root = staging.path();
    for folder in ["bin", "etc", "proc", "sys", "dev", "tmp", "run", "lib/modules"] {
        std::fs::create_dir_all(root.join(folder))?;
    }
    copy_modules(tree, &root.join("lib/modules"))?;
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

fn copy_modules(tree: &Path, to: &Path) -> Result<()> {
    let mut known = BTreeMap::new();
    let mut folders = vec![tree.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)?.flatten() {
            let path = entry.path();
            let file_type = entry.file_type()?;
            if file_type.is_dir() {
                folders.push(path);
            } else if let Some((stem, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
                known.insert(stem.replace('-', "_"), path);
            }
        }
    }
    let mut order = Vec::new();
    for module in MODULES {
        place_module(module, &known, to, &mut order)?;
    }
    if !order.iter().any(|name| name == "rdma_rxe") {
        bail!("the distribution's kernel package has no rdma_rxe module");
    }
    std::fs::write(to.join("order"), order.join("\n") + "\n")?;
    Ok(())
}

/// Places a module after those it depends on; one that the kernel has built in is no file and needs nothing.
fn place_module(
    name: &str,
    known: &BTreeMap<String, PathBuf>,
    to: &Path,
    order: &mut Vec<String>,
) -> Result<()> {
    let name = name.replace('-', "_");
    let Some(path) = known.get(&name) else { return Ok(()) };
    if order.contains(&name) {
        return Ok(());
    }
    let file = to.join(format!("{name}.ko"));
    let unpack = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => "xz -dc",
        Some("zst") => "zstd -qdc",
        _ => "cat",
    };
    let line = format!("{unpack} \"$0\" > \"$1\"");
    run(Command::new("sh").args(["-c", &line]).arg(path).arg(&file))?;
    for needed in depends(&std::fs::read(&file)?) {
        place_module(&needed, known, to, order)?;
    }
    order.push(name);
    Ok(())
}

/// The `depends=` entry of a module's `.modinfo` section.
fn depends(module: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = module.windows(KEY.len()).position(|window| window == KEY) else {
        return Vec::new();
    };
    let value = module[at + KEY.len()..].split(|&byte| byte == 0).next().unwrap_or_default();
    let value = String::from_utf8_lossy(value);
    value.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn reads_the_dependencies_of_a_module() {
        assert_eq!(
            super::depends(b"license=GPL\0depends=ib_core,udp_tunnel\0x"),
            ["ib_core", "udp_tunnel"]
        );
        assert!(super::depends(b"a\0depends=\0b").is_empty());
        assert!(super::depends(b"nothing").is_empty());
    }
}
