//! What a guest has in memory when it boots: busybox, modules, programs of this machine with the
//! libraries they need.

use crate::command::{find_program, run_text};
use crate::cpio::Archive;
use crate::error::{At as _, Error, Result};
use crate::kernel::{Kernel, Module};
use crate::store::Store;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

/// Where libraries for programs by name lie, in the order of this machine's own search.
const LIBRARY_FOLDERS: [&str; 3] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
/// Libraries that programs load by name: no listing of what they need shows them. glibc's
/// `pthread_exit` wants this one.
const LOADED_BY_NAME: [&str; 1] = ["libgcc_s.so.1"];

/// A RAM disk under construction. Its first process is busybox's shell with the script `/init`.
pub struct RamDisk {
    archive: Archive,
    added: BTreeSet<PathBuf>,
}

impl RamDisk {
    /// One that has busybox and runs `init`.
    ///
    /// # Errors
    /// There is no busybox that runs without libraries.
    pub fn new(init: &str) -> Result<RamDisk> {
        let busybox = find_program("busybox")
            .map_err(|_| Error::missing("busybox is not installed", "install busybox-static"))?;
        if !libraries(&busybox).is_empty() {
            let what = "this machine's busybox needs libraries";
            return Err(Error::missing(what, "install busybox-static"));
        }
        let mut archive = Archive::default();
        for folder in ["bin", "etc", "proc", "sys", "dev", "tmp", "run", "root", "lib/modules"] {
            archive.folder(folder);
        }
        // The kernel opens it for the first process before that can mount anything.
        archive.device("dev/console", 5, 1);
        archive.file("bin/busybox", 0o755, &fs::read(&busybox).at(&busybox)?);
        archive.file("init", 0o755, init.as_bytes());
        let mut disk = RamDisk { archive, added: BTreeSet::new() };
        for name in LOADED_BY_NAME {
            let places = LIBRARY_FOLDERS.iter().map(|folder| Path::new(folder).join(name));
            if let Some(file) = places.into_iter().find(|file| file.is_file()) {
                disk.copy(&file)?;
            }
        }
        Ok(disk)
    }

    /// Adds modules, and those they depend on, to `/lib/modules`; in the order of its file `order`
    /// they can be loaded. Tells which it added.
    ///
    /// # Errors
    /// A module's file cannot be read.
    pub fn modules(&mut self, kernel: &Kernel, names: &[&str]) -> Result<Vec<String>> {
        self.add_modules(kernel, names, Vec::new())
    }

    /// As [`RamDisk::modules`], and the driver of the virtual GPU. It is built once for the kernel
    /// and kept in `store`; so is what that needs and this machine lacks.
    ///
    /// # Errors
    /// The kernel is not [`Kernel::newest`], its headers cannot be had, or gcc and make are not
    /// installed; a module's file cannot be read.
    pub fn modules_with_gpu(
        &mut self,
        kernel: &Kernel,
        names: &[&str],
        store: &Store,
    ) -> Result<Vec<String>> {
        let driver = crate::gpu_driver::build(kernel, store)?;
        self.add_modules(kernel, names, vec![driver])
    }

    fn add_modules(
        &mut self,
        kernel: &Kernel,
        names: &[&str],
        own: Vec<Module>,
    ) -> Result<Vec<String>> {
        let mut order = Vec::new();
        for module in kernel.modules(names, own)? {
            self.archive.file(&format!("lib/modules/{}.ko", module.name), 0o644, &module.bytes);
            order.push(module.name);
        }
        self.archive.file("lib/modules/order", 0o644, (order.join("\n") + "\n").as_bytes());
        Ok(order)
    }

    /// Adds a program of this machine by its name, and the libraries it needs, all where they lie
    /// here.
    ///
    /// # Errors
    /// It is not installed, or cannot be read.
    pub fn program(&mut self, name: &str) -> Result<()> {
        let file = find_program(name)?;
        self.with_libraries(&file)
    }

    /// Adds a program file to `/usr/bin`, and the libraries it needs where they lie here.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn own_program(&mut self, file: &Path) -> Result<()> {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for library in libraries(file) {
            self.copy(&library)?;
        }
        self.archive.file(&format!("usr/bin/{name}"), 0o755, &fs::read(file).at(file)?);
        Ok(())
    }

    /// Adds rdma-core's user-space driver `name`, such as `mlx5`.
    ///
    /// # Errors
    /// It is not installed, or cannot be read.
    pub fn verbs_driver(&mut self, name: &str) -> Result<()> {
        let folders = LIBRARY_FOLDERS.iter().map(|folder| Path::new(folder).join("libibverbs"));
        let entries = folders.filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let wanted = format!("lib{name}-rdmav");
        let library = entries
            .map(|entry| entry.path())
            .find(|file| file.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&wanted)))
            .ok_or_else(|| {
                let what = format!("rdma-core's driver for {name} is not installed");
                Error::missing(what, "install ibverbs-providers")
            })?;
        self.with_libraries(&library)?;
        self.copy(&Path::new("/etc/libibverbs.d").join(format!("{name}.driver")))
    }

    /// Adds a file or folder of this machine, with all that is in it, where it lies here.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn tree(&mut self, path: &Path) -> Result<()> {
        if !path.is_dir() {
            return self.copy(path);
        }
        self.archive.folder(&inside(path));
        for entry in fs::read_dir(path).at(path)?.flatten() {
            self.tree(&entry.path())?;
        }
        Ok(())
    }

    /// Adds files and folders of another root file system below `place`, with what they link to
    /// there and the libraries they need, so that a guest can `chroot` there. Names are those in
    /// that root.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn of_root(&mut self, root: &Path, place: &str, names: &[&str]) -> Result<()> {
        let mut copier = RootCopier { disk: self, root, place: place.trim_matches('/') };
        for name in ["bin", "sbin", "lib", "lib64", LOADER].iter().chain(names) {
            copier.entry(name)?;
        }
        Ok(())
    }

    /// Adds a file with this content.
    pub fn file(&mut self, name: &str, content: &[u8]) {
        self.archive.file(name.trim_start_matches('/'), 0o644, content);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, name: &str, target: &str) {
        self.archive.link(name.trim_start_matches('/'), target);
    }

    /// Writes it to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(self, out: &Path) -> Result<()> {
        fs::write(out, self.archive.finish()).at(out)
    }

    fn with_libraries(&mut self, file: &Path) -> Result<()> {
        for library in libraries(file) {
            self.copy(&library)?;
        }
        self.copy(file)
    }

    fn copy(&mut self, file: &Path) -> Result<()> {
        if self.added.insert(file.to_owned()) {
            let mode = fs::metadata(file).at(file)?.permissions().mode() & 0o777;
            self.archive.file(&inside(file), mode, &fs::read(file).at(file)?);
        }
        Ok(())
    }
}

/// The program in a root file system that starts its programs, and can list the libraries they
/// need.
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
const ELF: &[u8] = b"\x7fELF";

/// Copies from another root file system.
struct RootCopier<'a> {
    disk: &'a mut RamDisk,
    root: &'a Path,
    place: &'a str,
}

impl RootCopier<'_> {
    /// A name in the root, which may be that of a folder, a file or a link; folders that links lead
    /// to stay empty.
    fn entry(&mut self, name: &str) -> Result<()> {
        let file = self.root.join(name);
        if !self.disk.added.insert(file.clone()) {
            return Ok(());
        }
        let inside = format!("{}/{name}", self.place);
        let kind = fs::symlink_metadata(&file).at(&file)?.file_type();
        if kind.is_symlink() {
            let target = fs::read_link(&file).at(&file)?;
            self.disk.archive.link(&inside, &target.to_string_lossy());
            return match linked(name, &target) {
                Some(target) if self.root.join(&target).is_file() => self.entry(&target),
                _ => Ok(()),
            };
        }
        if kind.is_dir() {
            self.disk.archive.folder(&inside);
            for entry in fs::read_dir(&file).at(&file)?.flatten() {
                self.entry(&format!("{name}/{}", entry.file_name().to_string_lossy()))?;
            }
            return Ok(());
        }
        let content = fs::read(&file).at(&file)?;
        let mode = fs::metadata(&file).at(&file)?.permissions().mode() & 0o777;
        self.disk.archive.file(&inside, mode, &content);
        if content.starts_with(ELF) { self.libraries(&file) } else { Ok(()) }
    }

    fn libraries(&mut self, file: &Path) -> Result<()> {
        let folder = self.root.join(LIBRARY_FOLDERS[0].trim_start_matches('/'));
        let mut list = Command::new(self.root.join(LOADER));
        list.arg("--library-path").arg(folder).arg("--list").arg(file);
        // It fails for a file that needs none.
        let listing = run_text(&mut list).unwrap_or_default();
        let within = |word: &str| Path::new(word).strip_prefix(self.root).ok().map(inside);
        let needed: Vec<String> = listing.split_whitespace().filter_map(within).collect();
        needed.iter().try_for_each(|name| self.entry(name))
    }
}

/// Where a link leads, both named in the root; `None` if outside.
fn linked(name: &str, target: &Path) -> Option<String> {
    let mut parts: Vec<String> = Vec::new();
    let above = Path::new(name).parent().unwrap_or(Path::new(""));
    for part in above.join(target).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
            Component::ParentDir => parts.pop().map(drop)?,
            Component::RootDir => parts.clear(),
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Some(parts.join("/"))
}

/// A path of this machine as an archive names it.
fn inside(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').to_owned()
}

/// The libraries that a program or library needs; none for one without.
fn libraries(file: &Path) -> Vec<PathBuf> {
    // It fails for a file that needs none.
    let listing = run_text(Command::new("ldd").arg(file)).unwrap_or_default();
    let words = listing.split_whitespace().filter(|word| word.starts_with('/'));
    words.filter(|word| !word.ends_with(':')).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_within_the_root() {
        let cases = [
            ("usr/lib/x/libibverbs/a.so", "../libmlx5.so.1", Some("usr/lib/x/libmlx5.so.1")),
            ("usr/bin/sh", "dash", Some("usr/bin/dash")),
            ("etc/mtab", "/proc/mounts", Some("proc/mounts")),
            ("lib", "../../usr/lib", None),
        ];
        for (name, target, expected) in cases {
            assert_eq!(linked(name, Path::new(target)).as_deref(), expected, "{name} -> {target}");
        }
    }
}
