//! A guest's kernel: the distribution's own, or the newest that Debian backports to its next
//! release, as unpacked packages.

use crate::apt::{self, Apt, SUITES};
use crate::command::run;
use crate::error::{At as _, Error, Result};
use crate::headers::Headers;
use crate::store::Store;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An unpacked kernel with its modules.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The bootable image.
    pub image: PathBuf,
    tree: PathBuf,
    /// Whether its headers lie where its image came from.
    is_newest: bool,
}

/// A module as the kernel loads it.
#[derive(Clone)]
pub(crate) struct Module {
    /// The module's name, with underscores.
    pub(crate) name: String,
    /// The file, unpacked.
    pub(crate) bytes: Vec<u8>,
}

impl Kernel {
    /// This machine's distribution's, kept in `store`.
    ///
    /// # Errors
    /// Why it cannot be had, in words.
    pub fn of_distribution(store: &Store) -> Result<Kernel> {
        Kernel::get(store, "kernel", || Ok(Apt::own()), false)
    }

    /// The newest that Debian backports to its next release, 7.3 in November 2026, kept in `store`.
    /// Needs a Debian mirror, on the first use.
    ///
    /// # Errors
    /// Why it cannot be had, in words.
    pub fn newest(store: &Store) -> Result<Kernel> {
        let newest = || Apt::of(&SUITES, &store.folder().join("newest-apt"));
        Kernel::get(store, "newest-kernel", newest, true)
    }

    /// An installed one: its image, and its folder of modules, such as `/lib/modules/VERSION`.
    ///
    /// # Errors
    /// Either is not there.
    pub fn installed(image: &Path, modules: &Path) -> Result<Kernel> {
        File::open(image).at(image)?;
        fs::read_dir(modules).at(modules)?;
        Ok(Kernel { image: image.to_owned(), tree: modules.to_owned(), is_newest: false })
    }

    fn get(
        store: &Store,
        name: &str,
        apt: impl FnOnce() -> Result<Apt>,
        is_newest: bool,
    ) -> Result<Kernel> {
        if std::env::consts::ARCH != "x86_64" {
            return Err(Error::missing("guests are x86-64 machines", "use one"));
        }
        let tree = store.keep(name, "fetching a kernel with its modules (120 MB)", |tree| {
            apt::check()?;
            let apt = apt()?;
            apt.unpack(&packages(&apt)?, tree)
        })?;
        let image = image(&tree).ok_or_else(|| {
            Error::missing("the kernel's packages have no image", "name a kernel yourself")
        })?;
        Ok(Kernel { image, tree, is_newest })
    }

    /// What modules for it are built against. Only the newest's is known.
    pub(crate) fn headers(&self, store: &Store) -> Result<Headers> {
        let versions = fs::read_dir(self.tree.join("usr/lib/modules")).into_iter().flatten();
        let version = versions.flatten().next().filter(|_| self.is_newest);
        let version = version.ok_or_else(|| {
            Error::missing("there are no headers for this kernel", "use the newest kernel")
        })?;
        Headers::fetched(store, &version.file_name().to_string_lossy())
    }

    /// The modules `names`, each after those it depends on, and at last `own` ones. One that is
    /// built in is no file and needs nothing.
    pub(crate) fn modules(&self, names: &[&str], own: Vec<Module>) -> Result<Vec<Module>> {
        let known = modules(&self.tree)?;
        let mut found = Vec::new();
        for name in names {
            add_module(name, &known, &mut found)?;
        }
        for module in own {
            for needed in depends(&module.bytes) {
                add_module(&needed, &known, &mut found)?;
            }
            found.push(module);
        }
        Ok(found)
    }
}

/// Packages with the newest kernel: Debian kept the modules with the image and now has them apart,
/// as Ubuntu has.
fn packages(apt: &Apt) -> Result<Vec<String>> {
    for meta in ["linux-image-amd64", "linux-image-generic"] {
        let Ok(names) = apt.depends(meta) else { continue };
        let version = names.iter().find_map(|name| name.strip_prefix("linux-image-"));
        let Some(version) = version else { continue };
        let kinds = ["image", "binary", "modules", "modules-extra"];
        let packages = kinds.map(|kind| format!("linux-{kind}-{version}"));
        return Ok(packages.into_iter().filter(|name| apt.knows(name)).collect());
    }
    Err(Error::missing("no kernel package is known to apt", "run apt-get update"))
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
        for entry in fs::read_dir(&folder).at(&folder)?.flatten() {
            let path = entry.path();
            if entry.file_type().at(&path)?.is_dir() {
                folders.push(path);
            } else if let Some((stem, _)) = entry.file_name().to_string_lossy().split_once(".ko") {
                known.insert(stem.replace('-', "_"), path);
            }
        }
    }
    Ok(known)
}

fn add_module(
    name: &str,
    known: &BTreeMap<String, PathBuf>,
    found: &mut Vec<Module>,
) -> Result<()> {
    let name = name.replace('-', "_");
    let Some(path) = known.get(&name) else { return Ok(()) };
    if found.iter().any(|module| module.name == name) {
        return Ok(());
    }
    let bytes = match path.extension().and_then(|e| e.to_str()) {
        Some("xz") => run(Command::new("xz").arg("-dc").arg(path))?,
        Some("zst") => run(Command::new("zstd").arg("-qdc").arg(path))?,
        _ => fs::read(path).at(path)?,
    };
    for needed in depends(&bytes) {
        add_module(&needed, known, found)?;
    }
    found.push(Module { name, bytes });
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
