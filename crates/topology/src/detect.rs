//! What a file is, by its content.

use crate::Error;
use crate::capture::take;
use crate::model::build;
use crate::readers::{hwloc, lspci, lspci_tree, nccl, rdma_topo, smi, sysfs, xml};
use crate::source::archive::{Archive, is_archive};
use crate::source::bounds::{self, LONGEST_SOURCE, LONGEST_TEXT, clean};
use crate::source::tree::{Folder, Tree};
use pcie::{Machine, Platform, ReadyMade, Shown};
use std::fmt;
use std::path::Path;

/// What a machine was read from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// `/sys`, of this machine or a captured one.
    Sysfs,
    /// `lspci`, best `-D -nn -vvv`.
    Lspci,
    /// `lspci -tv`.
    LspciTree,
    /// NCCL's or RCCL's topology XML.
    Nccl,
    /// hwloc's XML.
    Hwloc,
    /// rdma-core's `rdma_topo dump`.
    RdmaTopo,
    /// `nvidia-smi -q -x`.
    NvidiaSmi,
    /// A platform file.
    Platform,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Sysfs => "sysfs",
            Format::Lspci => "lspci",
            Format::LspciTree => "lspci -tv",
            Format::Nccl => "NCCL topology XML",
            Format::Hwloc => "hwloc XML",
            Format::RdmaTopo => "rdma_topo dump",
            Format::NvidiaSmi => "nvidia-smi -q -x",
            Format::Platform => "platform file",
        })
    }
}

/// A machine and where it comes from.
#[derive(Debug)]
pub struct Capture {
    /// The machine.
    pub machine: Machine,
    /// What it was read from.
    pub format: Format,
    /// The product, if the source names it.
    pub name: Option<String>,
    /// What was odd about the source.
    pub notes: Vec<String>,
}

/// A folder or archive as a file tree; `None` for a file of any other kind, and for the name of a
/// ready-made platform.
///
/// # Errors
/// A file that cannot be read, an archive that is broken.
pub fn tree(path: &Path) -> Result<Option<Box<dyn Tree>>, Error> {
    if path.is_dir() {
        return Ok(Some(Box::new(folder(path)?)));
    }
    if ReadyMade::called(path).is_some() {
        return Ok(None);
    }
    let bytes = bounds::read_file(path, LONGEST_SOURCE)?;
    if !is_archive(&bytes) {
        return Ok(None);
    }
    Ok(Some(Box::new(Archive::parse(&bytes)?)))
}

/// A folder that looks like `/`.
fn folder(path: &Path) -> Result<Folder, Error> {
    if !path.join("sys").is_dir() {
        return Err(Error::NoSys(path.to_owned()));
    }
    Ok(Folder::new(path))
}

/// This machine.
///
/// A container without `/sys` and a machine without PCI are machines without functions.
///
/// # Errors
/// [`Error::Tree`] if the kernel's tree is none.
pub fn this_machine() -> Result<Capture, Error> {
    of_tree(&Folder::new(Path::new("/")))
}

/// Takes the machine of a folder or archive home in one file (see `capture.rs`).
///
/// # Errors
/// A source that is neither, or cannot be read; those of writing.
pub fn take_file(path: &Path, out: impl std::io::Write) -> Result<(), Error> {
    let tree = tree(path)?.ok_or_else(|| Error::NoTree(path.to_owned()))?;
    take(&*tree, out).map_err(Error::Write)
}

/// The dump of rdma-core's `rdma_topo` of a folder or archive (see [`crate::dump`]).
///
/// # Errors
/// A source that is neither, or cannot be read.
pub fn dump_file(path: &Path) -> Result<String, Error> {
    let tree = tree(path)?.ok_or_else(|| Error::NoTree(path.to_owned()))?;
    Ok(rdma_topo::dump(&*tree))
}

/// Reads a folder or file of any format.
///
/// # Errors
/// [`Error`] says what was tried and what is wrong.
pub fn read(path: &Path) -> Result<Capture, Error> {
    if let Some(ready) = ReadyMade::called(path) {
        return parse(ready.text.as_bytes(), ready.name);
    }
    if path.is_dir() {
        return of_tree(&folder(path)?);
    }
    let bytes = bounds::read_file(path, LONGEST_SOURCE)?;
    parse(&bytes, &path.display().to_string())
}

/// Reads a file's content; `name` is for messages.
///
/// # Errors
/// [`Error`] says what was tried and what is wrong.
pub fn parse(bytes: &[u8], name: &str) -> Result<Capture, Error> {
    if is_archive(bytes) {
        return of_tree(&Archive::parse(bytes)?);
    }
    if bytes.len() > LONGEST_TEXT {
        return Err(Error::TooLong(name.to_owned(), LONGEST_TEXT as u64));
    }
    let text = String::from_utf8_lossy(bytes);
    let plain = |format, machine| Capture { machine, format, name: None, notes: Vec::new() };
    match text.trim_start_matches('\u{feff}').trim_start().chars().next() {
        Some('<') => of_xml(&text, name),
        // a TOML file may begin with a bracket too
        Some('[') if serde_json::from_str::<Vec<serde::de::IgnoredAny>>(&text).is_ok() => {
            Ok(plain(Format::RdmaTopo, rdma_topo::read(&text)?))
        }
        Some('{') => Err(Error::malformed("rdma_topo dump", "a list of devices is expected")),
        _ if lspci_tree::is_tree(&text) => {
            let (machine, notes) = lspci_tree::read(&text)?;
            Ok(Capture { notes, ..plain(Format::LspciTree, machine) })
        }
        _ if lspci::is_listing(&text) => {
            let machine = lspci::read(&text)?;
            let hidden = machine.hosts().iter().any(|host| host.shown == Shown::Nothing);
            let note = "not every bridge and its buses are listed, so who shares a switch is not \
                        known: `sudo lspci -D -nn -vvv` lists them";
            let notes = if hidden { vec![note.to_owned()] } else { Vec::new() };
            Ok(Capture { notes, ..plain(Format::Lspci, machine) })
        }
        _ if is_platform(&text) => {
            let machine = Platform::from_toml(&text)?.machine().clone();
            build::few_pairs("platform file", &machine)?;
            Ok(plain(Format::Platform, machine))
        }
        _ => Err(Error::UnknownFormat(name.to_owned())),
    }
}

fn of_xml(text: &str, name: &str) -> Result<Capture, Error> {
    let document = xml::parse(text)?;
    let root = document.root_element();
    match root.tag_name().name() {
        "system" => {
            let (machine, notes) = nccl::read(root)?;
            Ok(Capture { machine, format: Format::Nccl, name: None, notes })
        }
        "graphs" => Err(Error::malformed(
            "NCCL graph XML",
            "it holds the rings NCCL found, not the machine; \
             give the file of NCCL_TOPO_DUMP_FILE",
        )),
        "nvidia_smi_log" => {
            let machine = smi::read(root)?;
            Ok(Capture { machine, format: Format::NvidiaSmi, name: None, notes: Vec::new() })
        }
        "topology" => {
            let hwloc::Hwloc { machine, name, notes } = hwloc::read(root)?;
            let name = name.as_deref().and_then(title);
            Ok(Capture { machine, format: Format::Hwloc, name, notes })
        }
        other => Err(Error::UnknownFormat(format!("{name}: XML with a root element <{other}>"))),
    }
}

/// A product's name as firmware has it, unless its maker never filled it in.
fn title(name: &str) -> Option<String> {
    const PLACEHOLDERS: [&str; 16] = [
        "to be filled by o.e.m.",
        "to be filled by oem",
        "system product name",
        "system manufacturer",
        "default string",
        "not specified",
        "not applicable",
        "not available",
        "unspecified",
        "undefined",
        "unknown",
        "none",
        "null",
        "n/a",
        "o.e.m.",
        "oem",
    ];
    let name = clean(name);
    let name = name.trim();
    let says_something = name.chars().any(|c| c.is_alphanumeric() && !matches!(c, '0' | 'x' | 'X'));
    let placeholder = PLACEHOLDERS.contains(&name.to_lowercase().as_str());
    (says_something && !placeholder).then(|| name.to_owned())
}

fn is_platform(text: &str) -> bool {
    text.lines()
        .any(|line| line.starts_with("[[host_bridge]]") || line.starts_with("host_bridge ="))
}

/// The machine that a file tree shows.
///
/// # Errors
/// [`Error::Tree`] if the devices form no tree.
pub fn of_tree(tree: &dyn Tree) -> Result<Capture, Error> {
    let name = tree.line("/sys/class/dmi/id/product_name").as_deref().and_then(title);
    Ok(Capture { machine: sysfs::read(tree)?, format: Format::Sysfs, name, notes: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_nothing_is_refused_with_a_reason() {
        for (bytes, reason) in [
            (&b""[..], "not a format"),
            (b"hello", "not a format"),
            (b"<html></html>", "<html>"),
            (b"<system", "XML"),
            (b"{}", "a list"),
            (b"\xff\xfe\x00", "not a format"),
            (b"[[host_bridge]]\nnam = 1", "platform file"),
        ] {
            let error = parse(bytes, "x").unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn placeholders_are_no_titles() {
        for name in
            ["To Be Filled By O.E.M.", "System Product Name", " Default string ", "0000", "xx", ""]
        {
            assert_eq!(title(name), None, "{name}");
        }
        assert_eq!(title("PowerEdge XE9680").as_deref(), Some("PowerEdge XE9680"));
        assert_eq!(title("a\u{1b}[2J").as_deref(), Some("a[2J"));
    }

    #[test]
    fn a_platform_file_is_a_machine() {
        let text = include_bytes!("../../pcie/src/platforms/default.toml");
        let capture = parse(text, "x").unwrap();
        assert_eq!(capture.format, Format::Platform);
        assert_eq!(crate::accelerators(&capture.machine).len(), 2);
        assert_eq!(crate::adapters(&capture.machine).len(), 1);
    }
}
