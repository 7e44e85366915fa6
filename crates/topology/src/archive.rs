//! A tar archive as a file tree. The tree may lie below folders of its own: the first that holds `sys` is the root.

use crate::Error;
use crate::source::Tree;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Cursor, Read};

/// Longest archive after decompression: a whole `/sys` of a large machine has some tens of MiB.
const LONGEST: u64 = 1 << 30;

enum Entry {
    File(Vec<u8>),
    Link(String),
}

/// An archive in memory.
pub(crate) struct Archive {
    entries: BTreeMap<String, Entry>,
    folders: BTreeMap<String, BTreeSet<String>>,
}

/// Whether bytes are an archive that [`Archive::parse`] takes.
pub(crate) fn is_archive(bytes: &[u8]) -> bool {
    bytes.starts_with(b"BZh") || bytes.starts_with(&[0x1f, 0x8b]) || is_tar(bytes)
}

fn is_tar(bytes: &[u8]) -> bool {
    bytes.get(257..262) == Some(b"ustar")
}

impl Archive {
    /// Reads a tar archive: plain, gzip or bzip2.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Archive, Error> {
        let mut plain = Vec::new();
        let bad = |error: std::io::Error| Error::malformed("archive", error);
        if bytes.starts_with(b"BZh") {
            bzip2::read::MultiBzDecoder::new(bytes)
                .take(LONGEST)
                .read_to_end(&mut plain)
                .map_err(bad)?;
        } else if bytes.starts_with(&[0x1f, 0x8b]) {
            flate2::read::MultiGzDecoder::new(bytes)
                .take(LONGEST)
                .read_to_end(&mut plain)
                .map_err(bad)?;
        } else {
            plain = bytes.to_vec();
        }
        if !is_tar(&plain) {
            return Err(Error::malformed("archive", "there is no tar in it"));
        }
        let mut entries = BTreeMap::new();
        let mut tar = tar::Archive::new(Cursor::new(plain));
        for entry in tar.entries().map_err(bad)? {
            let mut entry = entry.map_err(bad)?;
            let path = entry.path().map_err(bad)?.to_string_lossy().into_owned();
            let path = normal(&path);
            if let Some(target) = entry.link_name().map_err(bad)? {
                let target = target.to_string_lossy().into_owned();
                entries.insert(path, Entry::Link(target));
            } else if entry.header().entry_type().is_file() {
                let mut content = Vec::new();
                entry.read_to_end(&mut content).map_err(bad)?;
                entries.insert(path, Entry::File(content));
            }
        }
        let prefix =
            root(&entries).ok_or_else(|| Error::malformed("archive", "there is no /sys in it"))?;
        let entries: BTreeMap<String, Entry> = entries
            .into_iter()
            .filter_map(|(path, entry)| Some((path.strip_prefix(&prefix)?.to_owned(), entry)))
            .collect();
        let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for path in entries.keys() {
            let mut rest = path.as_str();
            while let Some((folder, name)) = rest.rsplit_once('/') {
                if !folders.entry(folder.to_owned()).or_default().insert(name.to_owned()) {
                    break;
                }
                rest = folder;
            }
        }
        Ok(Archive { entries, folders })
    }

    /// Follows links in every component; the path as far as it can be followed.
    fn resolve(&self, path: &str) -> String {
        let mut todo: Vec<String> = components(path).rev().map(str::to_owned).collect();
        let mut done: Vec<String> = Vec::new();
        // as many links as the kernel follows
        let mut links = 40;
        while let Some(next) = todo.pop() {
            if next == ".." {
                done.pop();
                continue;
            }
            done.push(next);
            let here = format!("/{}", done.join("/"));
            if let Some(Entry::Link(target)) = self.entries.get(&here)
                && links > 0
            {
                links -= 1;
                done.pop();
                if target.starts_with('/') {
                    done.clear();
                }
                todo.extend(components(target).rev().map(str::to_owned));
            }
        }
        format!("/{}", done.join("/"))
    }
}

fn components(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".")
}

fn normal(path: &str) -> String {
    format!("/{}", components(path).collect::<Vec<_>>().join("/"))
}

/// What stands before `/sys`. `/proc` has a `sys` too.
fn root(entries: &BTreeMap<String, Entry>) -> Option<String> {
    let before =
        |mark: &str| entries.keys().find_map(|path| Some(path[..path.find(mark)?].to_owned()));
    before("/sys/bus/").or_else(|| before("/sys/devices/"))
}

impl Tree for Archive {
    fn read(&self, path: &str) -> Option<Vec<u8>> {
        match self.entries.get(&self.resolve(path))? {
            Entry::File(content) => Some(content.clone()),
            Entry::Link(_) => None,
        }
    }

    fn list(&self, path: &str) -> Vec<String> {
        let real = self.resolve(path);
        let names = self.folders.get(real.trim_end_matches('/')).into_iter().flatten();
        names.cloned().collect()
    }

    fn link(&self, path: &str) -> Option<String> {
        let (folder, name) = path.rsplit_once('/')?;
        let at = format!("{}/{name}", self.resolve(folder).trim_end_matches('/'));
        match self.entries.get(&at)? {
            Entry::Link(target) => Some(target.clone()),
            Entry::File(_) => None,
        }
    }

    fn real(&self, path: &str) -> String {
        self.resolve(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        build(&mut builder);
        builder.into_inner().unwrap()
    }

    fn file(builder: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8]) {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, path, content).unwrap();
    }

    fn link(builder: &mut tar::Builder<Vec<u8>>, path: &str, target: &str) {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, path, target).unwrap();
    }

    #[test]
    fn files_folders_and_links() {
        let bytes = archive(|b| {
            file(b, "box/proc/sys/kernel/osrelease", b"7.2\n");
            file(b, "box/sys/devices/pci0000:00/0000:00:01.0/vendor", b"0x8086\n");
            link(
                b,
                "box/sys/bus/pci/devices/0000:00:01.0",
                "../../../devices/pci0000:00/0000:00:01.0",
            );
            link(b, "box/sys/devices/pci0000:00/0000:00:01.0/driver", "../../../bus/pci/drivers/x");
            link(b, "box/sys/loop", "loop");
        });
        let tree = Archive::parse(&bytes).unwrap();
        let device = "/sys/bus/pci/devices/0000:00:01.0";
        assert_eq!(tree.list("/sys/bus/pci/devices"), ["0000:00:01.0"]);
        assert_eq!(tree.real(device), "/sys/devices/pci0000:00/0000:00:01.0");
        assert_eq!(tree.line(&format!("{device}/vendor")).unwrap(), "0x8086");
        assert_eq!(tree.link_name(&format!("{device}/driver")).unwrap(), "x");
        assert_eq!(tree.list("/"), ["proc", "sys"]);
        assert_eq!(tree.read("/sys/loop"), None);
        assert_eq!(tree.read("/sys/nothing"), None);
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        let elsewhere = archive(|b| file(b, "etc/passwd", b"x"));
        for bytes in [&elsewhere[..], b"BZh9 broken", &[0x1f, 0x8b, 8, 0], b""] {
            assert!(matches!(Archive::parse(bytes), Err(Error::Malformed { .. })));
        }
    }
}
