//! A guest's kernel: the distribution's own, or the newest that Debian backports to its next release, as packages unpacked
//! under `target/lab`.

use super::cache;
use crate::apt::{Apt, PROGRAMS, run};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Debian releases whose newest kernel [`Kernel::newest`] is, the preferred one last.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];

/// An unpacked kernel with its modules.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The bootable image.
    pub image: PathBuf,
    tree: PathBuf,
}

impl Kernel {
    /// This machine's distribution's.
    ///
    /// # Errors
    /// Why it cannot be had, in words.
    pub fn of_distribution() -> Result<Kernel> {
        Kernel::get("kernel", || Ok(Apt::own()))
    }

    /// The newest that Debian backports to its next release: 7.3 in November 2026. Needs a Debian mirror, on the first use.
    ///
    /// # Errors
    /// Why it cannot be had, in words. A test skips with it.
    pub fn newest() -> Result<Kernel> {
        // Tried once: where there is no network, to find that out takes time.
        static TRIED: OnceLock<Result<Kernel, String>> = OnceLock::new();
        let lists = || Apt::of(&SUITES, &cache().join("newest-apt"));
        let get = || {
            let kernel = Kernel::get("newest-kernel", lists);
            kernel.map_err(|error| format!("no newer kernel for the lab's guest: {error:#}"))
        };
        TRIED.get_or_init(get).clone().map_err(anyhow::Error::msg)
    }

    fn get(name: &str, apt: impl FnOnce() -> Result<Apt>) -> Result<Kernel> {
        if std::env::consts::ARCH != "x86_64" {
            bail!("the lab's guest is an x86-64 one");
        }
        if let Some(missing) = PROGRAMS.into_iter().find(|program| !crate::has(program)) {
            bail!("{missing} is not installed");
        }
        fs::create_dir_all(cache())?;
        // One at a time, also among test processes.
        let lock = File::create(cache().join(format!("{name}.lock")))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive)?;
        let tree = cache().join(name);
        if !tree.join("complete").is_file() {
            let _ = fs::remove_dir_all(&tree);
            let apt = apt()?;
            apt.unpack(&packages(&apt)?, &tree)?;
            File::create(tree.join("complete"))?;
        }
        let image = image(&tree).context("the kernel's packages have no image")?;
        Ok(Kernel { image, tree })
    }

    /// Unpacks the modules `names` into a folder, after those they depend on, and their order into its file `order`. One that
    /// is built in is no file and needs nothing.
    ///
    /// # Errors
    /// Files that cannot be read or written.
    pub fn place_modules(&self, names: &[&str], to: &Path) -> Result<Vec<String>> {
        let known = modules(&self.tree)?;
        let mut order = Vec::new();
        for name in names {
            place_module(name, &known, to, &mut order)?;
        }
        fs::write(to.join("order"), order.join("\n") + "\n")?;
        Ok(order)
    }
}

/// Packages with the newest kernel: Debian kept the modules with the image and now has them apart, as Ubuntu has.
fn packages(apt: &Apt) -> Result<Vec<String>> {
    for meta in ["linux-image-amd64", "linux-image-generic"] {
        let Ok(names) = apt.depends(meta) else { continue };
        let version = names.iter().find_map(|name| name.strip_prefix("linux-image-"));
        let Some(version) = version else { continue };
        let kinds = ["image", "binary", "modules", "modules-extra"];
        let packages = kinds.map(|kind| format!("linux-{kind}-{version}"));
        return Ok(packages.into_iter().filter(|name| apt.knows(name)).collect());
    }
    bail!("no kernel package is known to apt (run `apt-get update`)")
}

/// In `/boot`, or beside the modules as Debian has it from Linux 7 on.
fn image(tree: &Path) -> Option<PathBuf> {
    let entries = |folder: PathBuf| fs::read_dir(folder).into_iter().flatten().flatten();
    let is_image = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz"))
    };
    let versions = entries(tree.join("usr/lib/modules")).map(|entry| entry.path());
    let folders = versions.chain([tree.join("boot")]);
    folders.flat_map(entries).map(|entry| entry.path()).find(is_image)
}

/// Every module's file by its name, with underscores.
fn modules(tree: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut known = BTreeMap::new();
    let mut folders = vec![tree.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)?.flatten() {
            let path = entry.path();
            if entry.file_type()?.is_dir() {
                folders.push(path);
            } else if let Some((stem, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
                known.insert(stem.replace('-', "_"), path);
            }
        }
    }
    Ok(known)
}

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
    for needed in depends(&fs::read(&file)?) {
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
