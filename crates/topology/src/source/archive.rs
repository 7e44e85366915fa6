//! A tar archive as a file tree. The tree may lie below folders of its own: the first that holds
//! `sys` is the root.

use super::bounds::LONGEST_FILE;
use super::error::Error;
use super::tree::{Tree, components, resolve};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};

/// Longest archive after decompression. A whole `/sys` of a large machine has some tens of MiB.
const LONGEST: u64 = 256 << 20;
/// Most bytes of files that are kept, and most entries.
const MOST_KEPT: u64 = 128 << 20;
const MOST_ENTRIES: usize = 256 << 10;
/// Longest path or link.
const LONGEST_PATH: usize = 4096;

enum Entry {
    File(Vec<u8>),
    Link(String),
    Folder,
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

/// A stream that fails once more has come than an archive may have: a few bytes may stand for any
/// number.
struct Bounded<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.left = self.left.checked_sub(count as u64).ok_or_else(|| {
            io::Error::other(format!("longer than {} MiB after decompression", LONGEST >> 20))
        })?;
        Ok(count)
    }
}

fn bad(reason: impl ToString) -> Error {
    Error::malformed("archive", reason)
}

impl Archive {
    /// Reads a tar archive: plain, gzip or bzip2.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Archive, Error> {
        if bytes.starts_with(b"BZh") {
            Archive::unpack(bzip2::read::MultiBzDecoder::new(bytes))
        } else if bytes.starts_with(&[0x1f, 0x8b]) {
            Archive::unpack(flate2::read::MultiGzDecoder::new(bytes))
        } else {
            Archive::unpack(bytes)
        }
    }

    fn unpack(stream: impl Read) -> Result<Archive, Error> {
        let mut stream = Bounded { inner: stream, left: LONGEST };
        let mut first = Vec::new();
        (&mut stream).take(512).read_to_end(&mut first).map_err(bad)?;
        if !is_tar(&first) {
            return Err(bad("there is no tar in it"));
        }
        let entries = entries(io::Cursor::new(first).chain(stream))?;
        let prefix = root(&entries).ok_or_else(|| bad("there is no /sys in it"))?;
        let entries: BTreeMap<String, Entry> = entries
            .into_iter()
            .filter_map(|(path, entry)| Some((path.strip_prefix(&prefix)?.to_owned(), entry)))
            .collect();
        let mut folders: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (path, entry) in &entries {
            if matches!(entry, Entry::Folder) {
                folders.entry(path.clone()).or_default();
            }
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
        resolve(path, |here| match self.entries.get(here)? {
            Entry::Link(target) => Some(target.clone()),
            Entry::File(_) | Entry::Folder => None,
        })
    }
}

/// Every file, link and folder of an archive. What is longer than anything that is read is left
/// out.
fn entries(stream: impl Read) -> Result<BTreeMap<String, Entry>, Error> {
    let mut entries = BTreeMap::new();
    let mut kept = 0u64;
    let mut tar = tar::Archive::new(stream);
    for entry in tar.entries().map_err(bad)? {
        let mut entry = entry.map_err(bad)?;
        let path = normal(&entry.path().map_err(bad)?.to_string_lossy());
        let link = entry.link_name().map_err(bad)?;
        let found = if let Some(target) = link {
            Entry::Link(target.to_string_lossy().into_owned())
        } else if entry.header().entry_type().is_dir() {
            Entry::Folder
        } else if entry.header().entry_type().is_file() && entry.size() <= LONGEST_FILE {
            let mut content = Vec::new();
            // a sparse entry may claim what the stream never brings
            (&mut entry).take(LONGEST_FILE).read_to_end(&mut content).map_err(bad)?;
            kept += content.len() as u64;
            Entry::File(content)
        } else {
            continue;
        };
        let longest = match &found {
            Entry::Link(target) => target.len().max(path.len()),
            _ => path.len(),
        };
        if longest > LONGEST_PATH {
            continue;
        }
        entries.insert(path, found);
        if kept > MOST_KEPT || entries.len() > MOST_ENTRIES {
            return Err(bad("it holds more than a machine shows of itself"));
        }
    }
    Ok(entries)
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
            Entry::Link(_) | Entry::Folder => None,
        }
    }

    fn start(&self, path: &str, most: usize) -> Option<Vec<u8>> {
        match self.entries.get(&self.resolve(path))? {
            Entry::File(content) => Some(content[..content.len().min(most)].to_vec()),
            Entry::Link(_) | Entry::Folder => None,
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
            Entry::File(_) | Entry::Folder => None,
        }
    }

    fn real(&self, path: &str) -> String {
        self.resolve(path)
    }

    fn has_folder(&self, path: &str) -> bool {
        self.folders.contains_key(self.resolve(path).trim_end_matches('/'))
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
    fn what_grows_without_end_is_refused() {
        use std::io::Write;
        // 2 GiB of zeros after a tar's first entry
        let mut bytes = archive(|b| file(b, "box/sys/bus/pci/x", b"x"));
        bytes.truncate(1024);
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packed.write_all(&bytes).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_path("box/sys/y").unwrap();
        header.set_size(2 << 30);
        header.set_mode(0o644);
        header.set_cksum();
        packed.write_all(header.as_bytes()).unwrap();
        let zeros = vec![0; 1 << 20];
        for _ in 0..300 {
            packed.write_all(&zeros).unwrap();
        }
        let error = Archive::parse(&packed.finish().unwrap()).err().unwrap().to_string();
        assert!(error.contains("after decompression"), "{error}");

        let many =
            archive(|b| (0..9).for_each(|i| file(b, &format!("sys/bus/{i}"), &vec![0; 15 << 20])));
        let error = Archive::parse(&many).err().unwrap().to_string();
        assert!(error.contains("more than a machine shows"), "{error}");
    }

    #[test]
    fn a_sparse_file_of_any_length_is_left_out() {
        let mut bytes = archive(|b| file(b, "sys/bus/pci/x", b"x"));
        bytes.truncate(1024);
        let mut header = tar::Header::new_gnu();
        header.set_path("sys/bus/pci/y").unwrap();
        header.set_entry_type(tar::EntryType::GNUSparse);
        header.set_size(0);
        let gnu = header.as_gnu_mut().unwrap();
        gnu.set_real_size(1 << 40);
        gnu.sparse[0].set_offset(1 << 40);
        gnu.sparse[0].set_length(0);
        header.set_cksum();
        bytes.extend(header.as_bytes());
        bytes.extend([0; 1024]);
        let tree = Archive::parse(&bytes).unwrap();
        assert_eq!(tree.read("/sys/bus/pci/y"), None);
        assert_eq!(tree.read("/sys/bus/pci/x").unwrap(), b"x");
    }

    #[test]
    fn links_that_only_grow_end() {
        let bytes = archive(|b| {
            file(b, "sys/bus/pci/x", b"x");
            link(b, "sys/l", &format!("l/{}", "a/".repeat(40)));
            link(b, "sys/m", "n/n");
            link(b, "sys/n", "m/m");
        });
        let tree = Archive::parse(&bytes).unwrap();
        for path in ["/sys/l", "/sys/m", "/sys/l/l/l"] {
            assert_eq!(tree.read(path), None);
            assert!(tree.real(path).len() < 3 * LONGEST_PATH);
        }
    }

    #[test]
    fn what_is_no_capture_is_refused() {
        let elsewhere = archive(|b| file(b, "etc/passwd", b"x"));
        for bytes in [&elsewhere[..], b"BZh9 broken", &[0x1f, 0x8b, 8, 0], b""] {
            assert!(matches!(Archive::parse(bytes), Err(Error::Malformed { .. })));
        }
    }
}
