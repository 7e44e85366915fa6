//! A file tree that looks like `/`: of this machine, a folder, or an archive.

use super::bounds::{self, LONGEST_FILE, printable};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// A file tree. Paths are absolute within it; what is missing or may not be read is `None` or
/// empty. Symbolic links lead to places within the tree, whatever they say.
pub trait Tree {
    /// Content of a file.
    fn read(&self, path: &str) -> Option<Vec<u8>>;
    /// The first bytes of a file, at most as many.
    fn start(&self, path: &str, most: usize) -> Option<Vec<u8>>;
    /// Names in a directory, sorted.
    fn list(&self, path: &str) -> Vec<String>;
    /// Where a symbolic link points, as it is written.
    fn link(&self, path: &str) -> Option<String>;
    /// The path without symbolic links, whether or not it exists.
    fn real(&self, path: &str) -> String;
    /// Whether there is such a directory, be it empty.
    fn has_folder(&self, path: &str) -> bool;

    /// First line of a file, without blanks around it, fit to be shown.
    fn line(&self, path: &str) -> Option<String> {
        // an attribute has a page at most
        let bytes = self.start(path, 4096)?;
        let text = String::from_utf8_lossy(&bytes);
        Some(printable(text.lines().next().unwrap_or_default().trim()))
    }
    /// Last component of where a symbolic link points.
    fn link_name(&self, path: &str) -> Option<String> {
        Some(self.link(path)?.rsplit('/').next()?.to_owned())
    }
}

/// A folder of the file system that looks like `/`, or `/` itself.
pub struct Folder {
    root: PathBuf,
    /// Directories as they were found: most of what is asked for lies in one that was asked for
    /// before.
    resolved: RefCell<HashMap<String, Resolved>>,
    /// Where links lead, which are asked for by many.
    followed: RefCell<HashMap<String, String>>,
}

/// A directory.
#[derive(Clone)]
struct Resolved {
    /// The path of the directory without symbolic links.
    real: String,
    /// Names in it that are links, if it could be listed.
    links: Option<Rc<HashSet<String>>>,
}

/// Most names that are read of a directory.
const MOST_NAMES: usize = 64 << 10;
/// Most links on the way to a file, as the kernel follows them, and the longest path.
const MOST_LINKS: u32 = 40;
const LONGEST_PATH: usize = 4096;

impl Folder {
    /// The tree below `root`.
    pub fn new(root: &Path) -> Folder {
        let root = fs::canonicalize(root).unwrap_or_else(|_| root.to_owned());
        Folder { root, resolved: RefCell::default(), followed: RefCell::default() }
    }

    /// Where a path of the tree lies in the file system. In a folder, links that leave it are
    /// followed within, so the kernel must not be the one that follows them.
    fn at(&self, path: &str) -> PathBuf {
        if self.root == Path::new("/") {
            return PathBuf::from(path);
        }
        self.root.join(self.real(path).trim_start_matches('/'))
    }

    /// The same for a path whose last component is not to be followed.
    fn at_link(&self, path: &str) -> PathBuf {
        match path.rsplit_once('/') {
            Some((folder, name)) if !matches!(name, "" | "." | "..") => self.at(folder).join(name),
            _ => self.at(path),
        }
    }

    fn resolved(&self, folder: &str) -> Resolved {
        let real = if folder.is_empty() { "/".to_owned() } else { self.real(folder) };
        let at = self.root.join(real.trim_start_matches('/'));
        let links = fs::read_dir(at).ok().and_then(|entries| {
            let entries: Vec<fs::DirEntry> = entries.flatten().take(MOST_NAMES).collect();
            let is_link =
                |entry: &&fs::DirEntry| !entry.file_type().is_ok_and(|of| !of.is_symlink());
            let names = entries.iter().filter(is_link);
            let links = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
            (entries.len() < MOST_NAMES).then_some(Rc::new(links))
        });
        Resolved { real, links }
    }

    fn follow(&self, path: String) -> String {
        if let Some(known) = self.followed.borrow().get(&path) {
            return known.clone();
        }
        let real = resolve(&path, |path| self.written_link(path));
        self.followed.borrow_mut().insert(path, real.clone());
        real
    }

    fn written_link(&self, path: &str) -> Option<String> {
        let at = self.root.join(path.trim_start_matches('/'));
        fs::read_link(at).ok()?.into_os_string().into_string().ok()
    }
}

impl Tree for Folder {
    fn read(&self, path: &str) -> Option<Vec<u8>> {
        bounds::read_file(&self.at(path), LONGEST_FILE).ok()
    }

    fn start(&self, path: &str, most: usize) -> Option<Vec<u8>> {
        bounds::read_start(&self.at(path), most as u64).ok()
    }

    fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .take(MOST_NAMES)
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.at_link(path)).ok()?.into_os_string().into_string().ok()
    }

    fn real(&self, path: &str) -> String {
        if self.root == Path::new("/") {
            let real = fs::canonicalize(path).ok();
            return real
                .and_then(|real| real.into_os_string().into_string().ok())
                .unwrap_or_else(|| path.to_owned());
        }
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let known = self.resolved.borrow().get(folder).cloned();
        let Resolved { real, links } = known.unwrap_or_else(|| {
            let found = self.resolved(folder);
            self.resolved.borrow_mut().insert(folder.to_owned(), found.clone());
            found
        });
        let here = format!("{}/{name}", real.trim_end_matches('/'));
        let is_link = links.is_none_or(|links| links.contains(name));
        if is_link || matches!(name, "" | "." | "..") {
            return self.follow(here);
        }
        here
    }

    fn has_folder(&self, path: &str) -> bool {
        self.at(path).is_dir()
    }
}

/// Follows the links of a tree in every component of a path, within the tree; the path as far as it
/// can be followed.
pub(crate) fn resolve(path: &str, link: impl Fn(&str) -> Option<String>) -> String {
    let mut todo: Vec<String> = components(path).rev().map(str::to_owned).collect();
    let mut done = String::new();
    let mut links = MOST_LINKS;
    while let Some(next) = todo.pop() {
        if next == ".." {
            done.truncate(done.rfind('/').unwrap_or(0));
            continue;
        }
        let above = done.len();
        done.push('/');
        done.push_str(&next);
        if done.len() > LONGEST_PATH {
            break;
        }
        if links > 0
            && let Some(target) = link(&done).filter(|target| target.len() <= LONGEST_PATH)
        {
            links -= 1;
            done.truncate(if target.starts_with('/') { 0 } else { above });
            todo.extend(components(&target).rev().map(str::to_owned));
        }
    }
    if done.is_empty() { "/".to_owned() } else { done }
}

/// The parts of a path.
pub(crate) fn components(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A folder of its own, gone at the end.
    struct Own(PathBuf);

    impl Own {
        fn new(name: &str) -> Own {
            let path = std::env::temp_dir().join(format!("peerdma-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Own(fs::canonicalize(path).unwrap())
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn links_of_a_folder_stay_within_it() {
        let own = Own::new("links");
        fs::create_dir_all(own.0.join("root/sys/devices/pci0000:00/0000:00:01.0")).unwrap();
        fs::create_dir_all(own.0.join("root/sys/bus/pci/devices")).unwrap();
        fs::write(own.0.join("secret"), "outside").unwrap();
        let device = own.0.join("root/sys/devices/pci0000:00/0000:00:01.0");
        fs::write(device.join("vendor"), "0x8086\n").unwrap();
        symlink(own.0.join("secret"), device.join("class")).unwrap();
        symlink("../../../../../secret", device.join("device")).unwrap();
        symlink("loop", device.join("loop")).unwrap();
        symlink("../../../bus/pci/drivers/x", device.join("driver")).unwrap();
        let by_bus = own.0.join("root/sys/bus/pci/devices/0000:00:01.0");
        // as an archive has it: absolute within the tree
        symlink("/sys/devices/pci0000:00/0000:00:01.0", &by_bus).unwrap();
        let tree = Folder::new(&own.0.join("root"));
        let at = "/sys/bus/pci/devices/0000:00:01.0";
        assert_eq!(tree.real(at), "/sys/devices/pci0000:00/0000:00:01.0");
        assert_eq!(tree.line(&format!("{at}/vendor")).as_deref(), Some("0x8086"));
        assert_eq!(tree.line(&format!("{at}/class")), None, "outside by an absolute link");
        assert_eq!(tree.line(&format!("{at}/device")), None, "outside by ..");
        assert_eq!(tree.line(&format!("{at}/loop")), None);
        assert_eq!(tree.link_name(&format!("{at}/driver")).as_deref(), Some("x"));
        assert_eq!(tree.list(at).len(), 5);
    }
}
