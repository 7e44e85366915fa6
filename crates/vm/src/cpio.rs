//! Archives as the kernel unpacks them at boot: cpio's `newc` form (Linux,
//! `Documentation/driver-api/early-userspace/ buffer-format.rst`). Everything in them belongs to
//! root, whoever writes them.

use std::collections::BTreeSet;

const FOLDER: u32 = 0o040_755;
const FILE: u32 = 0o100_000;
const LINK: u32 = 0o120_777;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// An archive under construction.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// A folder, and those above it.
    pub(crate) fn folder(&mut self, name: &str) {
        if name.is_empty() || !self.folders.insert(name.to_owned()) {
            return;
        }
        self.above(name);
        self.entry(name, FOLDER, (0, 0), &[]);
    }

    /// A file with permissions `mode`, and the folders above it.
    pub(crate) fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.above(name);
        self.entry(name, FILE | mode, (0, 0), content);
    }

    /// A symbolic link.
    pub(crate) fn link(&mut self, name: &str, target: &str) {
        self.above(name);
        self.entry(name, LINK, (0, 0), target.as_bytes());
    }

    /// A character device.
    pub(crate) fn device(&mut self, name: &str, major: u32, minor: u32) {
        self.above(name);
        self.entry(name, CHARACTER_DEVICE, (major, minor), &[]);
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn above(&mut self, name: &str) {
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.folder(folder);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.entries += 1;
        let links = if mode == FOLDER { 2 } else { 1 };
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            content.len() as u32,
            0,
            0,
            device.0,
            device.1,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_contents_begin_at_multiples_of_four() {
        let mut archive = Archive::default();
        archive.file("a/bc", 0o755, b"hello");
        archive.link("a/l", "bc");
        archive.device("dev/console", 5, 1);
        let bytes = archive.finish();
        let (mut at, mut seen) = (0, Vec::new());
        let field = |at: usize, index: usize| {
            let digits = &bytes[at + 6 + 8 * index..at + 14 + 8 * index];
            usize::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()
        };
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let (mode, size, name) = (field(at, 1), field(at, 6), field(at, 11));
            let start = at + 110;
            let text = std::str::from_utf8(&bytes[start..start + name - 1]).unwrap();
            let content = (start + name).next_multiple_of(4);
            seen.push((text.to_owned(), mode, bytes[content..content + size].to_vec()));
            at = (content + size).next_multiple_of(4);
        }
        let entry = |name: &str, mode: u32, content: &[u8]| {
            (name.to_owned(), mode as usize, content.to_vec())
        };
        let expected = [
            entry("a", FOLDER, b""),
            entry("a/bc", 0o100_755, b"hello"),
            entry("a/l", LINK, b"bc"),
            entry("dev", FOLDER, b""),
            entry("dev/console", CHARACTER_DEVICE, b""),
            entry("TRAILER!!!", 0, b""),
        ];
        assert_eq!(seen, expected);
    }
}
