//! A file tree that looks like `/`: of this machine, a folder, or an archive.

use std::fs;
use std::path::{Path, PathBuf};

/// A file tree. Paths are absolute within it; what is missing or may not be read is `None` or empty.
pub trait Tree {
    /// Content of a file.
    fn read(&self, path: &str) -> Option<Vec<u8>>;
    /// Names in a directory, sorted.
    fn list(&self, path: &str) -> Vec<String>;
    /// Where a symbolic link points, as it is written.
    fn link(&self, path: &str) -> Option<String>;
    /// The path without symbolic links, whether or not it exists.
    fn real(&self, path: &str) -> String;

    /// First line of a file, without blanks around it.
    fn line(&self, path: &str) -> Option<String> {
        let bytes = self.read(path)?;
        let text = String::from_utf8_lossy(&bytes);
        Some(text.lines().next().unwrap_or_default().trim().to_owned())
    }
    /// Last component of where a symbolic link points.
    fn link_name(&self, path: &str) -> Option<String> {
        Some(self.link(path)?.rsplit('/').next()?.to_owned())
    }
}

/// A folder of the file system that looks like `/`, or `/` itself.
pub struct Folder {
    root: PathBuf,
}

/// Longest file that is read: attributes are short, configuration space has 4096 bytes.
const LONGEST: u64 = 16 << 20;

impl Folder {
    /// The tree below `root`.
    pub fn new(root: &Path) -> Folder {
        Folder { root: fs::canonicalize(root).unwrap_or_else(|_| root.to_owned()) }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

impl Tree for Folder {
    fn read(&self, path: &str) -> Option<Vec<u8>> {
        use std::io::Read;
        let file = fs::File::open(self.at(path)).ok()?;
        // a FIFO or a device in a folder of files would make a reader wait
        file.metadata().ok()?.is_file().then_some(())?;
        let mut bytes = Vec::new();
        file.take(LONGEST).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }

    fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort_unstable();
        names
    }

    fn link(&self, path: &str) -> Option<String> {
        fs::read_link(self.at(path)).ok()?.into_os_string().into_string().ok()
    }

    fn real(&self, path: &str) -> String {
        let found = fs::canonicalize(self.at(path)).ok();
        let inside = found.as_deref().and_then(|real| real.strip_prefix(&self.root).ok());
        match inside.and_then(Path::to_str) {
            Some(inside) => format!("/{inside}"),
            None => path.to_owned(),
        }
    }
}
