//! Which paths are ours, and where they lead.
//!
//! The tree (crate `sysfs`) has the shape of `/sys` below its root, and `dev/infiniband` beside it.
//! Redirected are `/sys/class/infiniband*`, `/sys/class/misc/rdma_cm` and `/dev/infiniband` always,
//! so that only our devices are seen, and below `/sys/devices` and `/sys/bus/pci/devices` whatever
//! goes through a PCI function that the tree has. Of GPUs the machine's own are seen too: the
//! listings of `/dev/dri` and `/sys/class/drm` are the tree's, which links to them, and below them
//! and `/sys/dev/char` what the machine does not have is the tree's; so with Peer-Direct clients.
//! What is read of `/proc/kallsyms` ends with the tree's lines: there programs look for what a
//! kernel can do. Reading a path is lexical; symbolic links inside the tree are followed by the
//! kernel.
//!
//! That a path is not ours is found without allocating: `open` and `stat` of other paths stay safe
//! in signal handlers.

use crate::errno::keeping_errno;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::ffi::{CString, OsStr};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

const SYS: &[u8] = b"/sys";
const DEV: &[u8] = b"/dev/infiniband";
const DRI: &[u8] = b"/dev/dri";
const SYMBOLS: &CStr = c"/proc/kallsyms";
/// `dddd:bb:dd.f`
const PCI_ADDRESS_LEN: usize = 12;

/// A character device of ours.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    /// `uverbs<index>`.
    Uverbs(u32),
    /// `rdma_cm`.
    RdmaCm,
    /// `card<minor>` or `renderD<minor>` of a software GPU.
    Drm(u32),
}

impl Node {
    fn of(below_dev: &[&[u8]]) -> Option<Node> {
        match below_dev {
            [b"rdma_cm"] => Some(Node::RdmaCm),
            [name] => {
                let index = std::str::from_utf8(name.strip_prefix(b"uverbs")?).ok()?;
                Some(Node::Uverbs(index.parse().ok()?))
            }
            _ => None,
        }
    }

    /// The node of a name below `/dev/dri`.
    fn of_dri(name: &[u8]) -> Option<Node> {
        let name = std::str::from_utf8(name).ok()?;
        let (number, renders) = match name.strip_prefix("renderD") {
            Some(number) => (number, true),
            None => (name.strip_prefix("card")?, false),
        };
        let minor: u32 = number.parse().ok()?;
        (renders == (minor >= sysfs::DRM_RENDER_BASE_MINOR)).then_some(Node::Drm(minor))
    }

    /// Whether it exists although there is no tree.
    fn is_announced(self) -> bool {
        match self {
            Node::Uverbs(index) => {
                1u64.checked_shl(index).is_some_and(|bit| ANNOUNCED.load(Relaxed) & bit != 0)
            }
            Node::RdmaCm => ANNOUNCED.load(Relaxed) != 0,
            Node::Drm(_) => false,
        }
    }

    /// Its path for C.
    pub(crate) fn path(self) -> CString {
        let name = match self {
            Node::Uverbs(index) => format!("/dev/infiniband/uverbs{index}"),
            Node::RdmaCm => "/dev/infiniband/rdma_cm".to_owned(),
            Node::Drm(minor) => sysfs::drm_node(minor),
        };
        CString::new(name).unwrap_or_default()
    }

    /// Its device number.
    pub(crate) fn device(self) -> libc::dev_t {
        match self {
            Node::Uverbs(index) => {
                let minor = sysfs::UVERBS_BASE_MINOR.saturating_add(index);
                libc::makedev(sysfs::UVERBS_MAJOR, minor)
            }
            Node::RdmaCm => crate::rdma_cm::device(),
            Node::Drm(minor) => crate::drm::device(minor),
        }
    }
}

/// Where a path of ours leads.
pub(crate) struct Target {
    /// The file that answers in its place.
    pub(crate) path: CString,
    /// The path below the root, when it names its object without `..`.
    key: Option<String>,
    /// The device node, if it is one.
    pub(crate) node: Option<Node>,
    /// The machine's own file, whose content comes before this one's.
    pub(crate) behind: Option<&'static CStr>,
}

impl Target {
    /// The attribute's path as a provider knows it, `class/infiniband/…`, whichever way the program
    /// took to it.
    pub(crate) fn attribute(&self) -> Option<String> {
        let key = self.key.as_deref()?;
        if key.strip_prefix(sysfs::PEERS).is_some_and(|rest| rest.starts_with('/')) {
            return Some(key.to_owned());
        }
        let at = key.rfind("/infiniband/")? + "/infiniband/".len();
        Some(format!("class/infiniband/{}", &key[at..]))
    }

    /// The path for C.
    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.path.as_ptr()
    }
}

/// Uverbs nodes 0 to 63 that exist although there is no tree.
static ANNOUNCED: AtomicU64 = AtomicU64::new(0);
/// Whether the program holds a directory of the tree, so that relative paths may be ours.
static RELATIVE: AtomicBool = AtomicBool::new(false);

/// Lets `/dev/infiniband/uverbs<index>` and `rdma_cm` exist, as character devices open to all, also
/// without a sysfs tree. Indices from 64 on are ignored.
pub fn announce_uverbs(index: u32) {
    if let Some(bit) = 1u64.checked_shl(index) {
        ANNOUNCED.fetch_or(bit, Relaxed);
    }
}

/// The root of the sysfs tree, if the environment names one.
pub fn sysfs_root() -> Option<&'static Path> {
    root().map(|root| Path::new(OsStr::from_bytes(root)))
}

fn root() -> Option<&'static [u8]> {
    static ROOT: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let find = || {
        let value = std::env::var_os(sysfs::ROOT_VARIABLE)?;
        let root = value.as_bytes();
        // A root inside what is redirected would lead back here.
        let redirected = |root: &[u8]| [SYS, DEV, DRI].iter().any(|ours| root.starts_with(ours));
        if root.first() != Some(&b'/') || redirected(root) {
            return None;
        }
        let canonical = std::fs::canonicalize(&value)
            .map_or(root.to_vec(), |path| path.into_os_string().into_encoded_bytes());
        // realpath() results are shortened in place to begin with /sys.
        (canonical.len() > SYS.len()).then_some(canonical)
    };
    ROOT.get_or_init(|| keeping_errno(find)).as_deref()
}

/// Where `path` leads if it is ours.
///
/// # Safety
/// `path` is null or NUL-terminated.
#[inline]
pub(crate) unsafe fn find(path: *const c_char) -> Option<Target> {
    // SAFETY: as the caller promises.
    if unsafe { begins(path, b"/sys/") || begins(path, DEV) || begins(path, DRI) } {
        // SAFETY: not null, as it begins with something.
        return find_absolute(unsafe { CStr::from_ptr(path) }.to_bytes());
    }
    None
}

/// The same for a path relative to `directory`, whose attributes may be ours after the tree was
/// opened.
///
/// # Safety
/// `path` is null or NUL-terminated.
#[inline]
pub(crate) unsafe fn find_at(directory: c_int, path: *const c_char) -> Option<Target> {
    // SAFETY: as the caller promises.
    unsafe {
        if RELATIVE.load(Relaxed) && !path.is_null() && !begins(path, b"/") {
            return find_relative(directory, CStr::from_ptr(path).to_bytes());
        }
        find(path)
    }
}

/// The same for a path that is to be opened, which may lead to the machine's file and the tree's
/// both.
///
/// # Safety
/// `path` is null or NUL-terminated.
#[inline]
pub(crate) unsafe fn find_to_open(directory: c_int, path: *const c_char) -> Option<Target> {
    // SAFETY: as the caller promises.
    unsafe {
        if begins(path, SYMBOLS.to_bytes_with_nul()) {
            return find_symbols();
        }
        find_at(directory, path)
    }
}

/// Remembers that a directory of the tree is open or current.
pub(crate) fn entered_tree() {
    RELATIVE.store(true, Relaxed);
}

/// At the start of the program: it may have been started inside the tree.
pub(crate) fn look_around() {
    let Some(root) = root() else { return };
    let mut buffer = [0u8; libc::PATH_MAX as usize];
    if system!(SYS_getcwd, buffer.as_mut_ptr(), buffer.len()) > 0 && buffer.starts_with(root) {
        entered_tree();
    }
}

/// # Safety
/// `path` is null or NUL-terminated.
#[inline]
unsafe fn begins(path: *const c_char, prefix: &[u8]) -> bool {
    // SAFETY: bytes are read one by one up to the first difference, which the terminating NUL is at
    // the latest.
    !path.is_null() && (0..prefix.len()).all(|i| unsafe { *path.add(i) as u8 } == prefix[i])
}

/// The parts of a path, without `.` and empty ones.
struct Components<'a> {
    parts: [&'a [u8]; Components::MOST],
    len: usize,
}

impl<'a> Components<'a> {
    /// Deeper than anything in the tree.
    const MOST: usize = 64;

    /// `None` for more parts than a path of ours has.
    fn of(parts: impl Iterator<Item = &'a [u8]>) -> Option<Components<'a>> {
        let mut components = Components { parts: [b""; Components::MOST], len: 0 };
        for part in parts.filter(|part| !part.is_empty() && *part != b".") {
            *components.parts.get_mut(components.len)? = part;
            components.len += 1;
        }
        Some(components)
    }

    fn as_slice(&self) -> &[&'a [u8]] {
        &self.parts[..self.len]
    }
}

/// A path for C, in a place of its own.
struct PathBuffer {
    bytes: [u8; libc::PATH_MAX as usize],
    len: usize,
}

impl PathBuffer {
    const fn new() -> PathBuffer {
        PathBuffer { bytes: [0; libc::PATH_MAX as usize], len: 0 }
    }

    /// Appends; `None` if the path would be too long for the kernel.
    fn push(&mut self, part: &[u8]) -> Option<()> {
        let end = self.len.checked_add(part.len()).filter(|end| *end < self.bytes.len())?;
        self.bytes[self.len..end].copy_from_slice(part);
        self.len = end;
        Some(())
    }

    /// NUL-terminated, as the last byte is never used.
    fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    /// Where a directory is that the program has open, or is in.
    fn of_directory(&mut self, directory: c_int) -> Option<&[u8]> {
        let mut link = Link { bytes: [0; 32], len: 0 };
        match directory {
            libc::AT_FDCWD => link.write_str("/proc/self/cwd").ok()?,
            directory => write!(link, "/proc/self/fd/{directory}").ok()?,
        }
        let (at, room) = (self.bytes.as_mut_ptr(), self.bytes.len());
        let name = link.bytes.as_ptr();
        let len = keeping_errno(|| system!(SYS_readlinkat, libc::AT_FDCWD, name, at, room));
        self.bytes.get(..usize::try_from(len).ok()?)
    }

    fn exists(&self) -> bool {
        let path = self.as_ptr();
        keeping_errno(|| system!(SYS_faccessat, libc::AT_FDCWD, path, libc::F_OK)) == 0
    }
}

/// The name of a descriptor, for C.
struct Link {
    bytes: [u8; 32],
    len: usize,
}

impl Write for Link {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.len + text.len();
        if end >= self.bytes.len() {
            return Err(std::fmt::Error);
        }
        self.bytes[self.len..end].copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

#[cold]
fn find_absolute(path: &[u8]) -> Option<Target> {
    let components = Components::of(path.split(|&b| b == b'/'))?;
    let components = components.as_slice();
    let root = root();
    match components {
        [b"dev", b"infiniband", rest @ ..] => {
            let node = Node::of(rest);
            match root {
                Some(root) => Some(target(root, components, node)),
                None if node?.is_announced() => {
                    Some(Target { path: c"/dev/null".into(), key: None, node, behind: None })
                }
                None => None,
            }
        }
        [b"dev", b"dri", rest @ ..] => {
            let root = root?;
            let ours = in_tree(root, components) && (rest.is_empty() || !exists(&[path]));
            let node = rest.first().and_then(|name| Node::of_dri(name));
            ours.then(|| target(root, components, node))
        }
        [b"sys", rest @ ..] => {
            let root = root?;
            let ours = match rest {
                [b"class", b"drm"] => in_tree(root, rest),
                [b"class", b"drm", ..] | [b"dev", b"char", _, ..] => {
                    in_tree(root, rest) && !exists(&[path])
                }
                [b"class", b"misc", b"rdma_cm", ..] => true,
                [b"kernel", b"mm", b"memory_peers", ..] => in_tree(root, rest) && !exists(&[path]),
                [b"class", class, ..] => class.starts_with(b"infiniband"),
                [b"bus", b"pci", b"devices", below @ ..] => {
                    below.iter().any(|part| has_function(root, part))
                }
                // The bridges above our function are the machine's, if it has them too.
                [b"devices", bus, ..] if bus.starts_with(b"pci") => {
                    rest.iter().any(|part| has_function(root, part))
                        || (in_tree(root, rest) && !exists(&[path]))
                }
                _ => false,
            };
            ours.then(|| target(root, rest, None))
        }
        _ => None,
    }
}

#[cold]
fn find_symbols() -> Option<Target> {
    let (root, components) = (root()?, [&b"proc"[..], b"kallsyms"]);
    in_tree(root, &components)
        .then(|| Target { behind: Some(SYMBOLS), ..target(root, &components, None) })
}

#[cold]
fn find_relative(directory: c_int, path: &[u8]) -> Option<Target> {
    let root = root()?;
    let mut base = PathBuffer::new();
    let base = base.of_directory(directory)?.strip_prefix(root)?;
    let parts = base.split(|&b| b == b'/').chain(path.split(|&b| b == b'/'));
    let components = Components::of(parts)?;
    let components = components.as_slice();
    matches!(components.first(), Some(&b"class" | &b"devices" | &b"kernel"))
        .then(|| target(root, components, None))
}

fn target(root: &[u8], components: &[&[u8]], node: Option<Node>) -> Target {
    let below = components.join(&b'/');
    let mut path = root.to_vec();
    path.push(b'/');
    path.extend_from_slice(&below);
    let key = if components.contains(&&b".."[..]) { None } else { String::from_utf8(below).ok() };
    // No NUL can be inside: every part comes from a NUL-terminated string.
    Target { path: CString::new(path).unwrap_or_default(), key, node, behind: None }
}

fn has_function(root: &[u8], part: &[u8]) -> bool {
    if part.len() != PCI_ADDRESS_LEN || part[4] != b':' || part[7] != b':' || part[10] != b'.' {
        return false;
    }
    exists(&[root, b"/bus/pci/devices/", part])
}

fn in_tree(root: &[u8], components: &[&[u8]]) -> bool {
    let mut path = PathBuffer::new();
    let parts = components.iter().flat_map(|part| [&b"/"[..], part]);
    std::iter::once(root).chain(parts).all(|part| path.push(part).is_some()) && path.exists()
}

fn exists(parts: &[&[u8]]) -> bool {
    let mut path = PathBuffer::new();
    parts.iter().all(|part| path.push(part).is_some()) && path.exists()
}

/// Turns a path below the root back into the one the program knows, in place. Others are left
/// alone.
///
/// # Safety
/// `path` is NUL-terminated and writable.
pub(crate) unsafe fn restore(path: *mut c_char) {
    let Some(root) = root() else { return };
    // SAFETY: as the caller promises.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    let Some(below) =
        bytes.strip_prefix(root).filter(|below| matches!(below.first(), None | Some(b'/')))
    else {
        return;
    };
    let is_dev = below.starts_with(DEV) || below.starts_with(DRI);
    let prefix: &[u8] = if is_dev { b"" } else { SYS };
    // SAFETY: the prefix is shorter than the root, so the result fits; copied with its NUL, regions
    // may overlap.
    unsafe {
        core::ptr::copy(path.add(root.len()), path.add(prefix.len()), below.len() + 1);
        core::ptr::copy_nonoverlapping(prefix.as_ptr().cast(), path, prefix.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attribute_is_named_the_same_whichever_way_leads_to_it() {
        let attribute = |key: &str| {
            let path = CString::default();
            Target { path, key: Some(key.into()), node: None, behind: None }.attribute()
        };
        let expected = Some("class/infiniband/peerdma0/ports/1/state".to_owned());
        assert_eq!(attribute("class/infiniband/peerdma0/ports/1/state"), expected);
        assert_eq!(
            attribute("devices/pci0000:00/0000:00:05.0/infiniband/peerdma0/ports/1/state"),
            expected
        );
        assert_eq!(
            attribute("class/infiniband_verbs/uverbs0/device/infiniband/peerdma0/ports/1/state"),
            expected
        );
        assert_eq!(attribute("class/infiniband_verbs/uverbs0/ibdev"), None);
        let counter = "kernel/mm/memory_peers/one/num_alloc_mrs";
        assert_eq!(attribute(counter).as_deref(), Some(counter));
    }

    #[test]
    fn other_paths_are_untouched() {
        // SAFETY: NUL-terminated.
        assert!(unsafe { find_to_open(libc::AT_FDCWD, c"/proc/kallsyms2".as_ptr()) }.is_none());
        for path in [c"/etc/passwd", c"/sys/class/net", c"/sys", c"/dev/null", c"relative", c""] {
            // SAFETY: NUL-terminated.
            assert!(unsafe { find(path.as_ptr()) }.is_none(), "{path:?}");
        }
        // SAFETY: null is allowed.
        assert!(unsafe { find(std::ptr::null()) }.is_none());
    }
}
