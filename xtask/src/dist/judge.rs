//! Whether programs and libraries of a package run where they are to: they ask for no symbol that
//! is younger than the oldest C library, load nothing beside it, and the drop-in library exports
//! what the list of rdma-core's symbols has, each at its version, and nothing of Rust's. binutils
//! reads them.

use super::files::{Entry, Files};
use super::target::C_LIBRARY;
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// What glibc itself brings.
const C_LIBRARY_FILES: [&str; 6] =
    ["libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "ld-linux-"];
const VERBS: &str = "lib/peerdma/libibverbs.so.1";
const SYMBOLS: &str = "crates/verbs/data/verbs-symbols.txt";

/// Looks at each file of an archive that is for a machine to load.
///
/// # Errors
/// The first that would not run, and why; or binutils is missing.
pub fn portable(tree: &Path, files: &Files) -> Result<()> {
    let folder = tempfile::tempdir()?;
    files.write(folder.path())?;
    for (path, entry) in files.entries() {
        let Entry::File { content, .. } = entry else { continue };
        if !content.starts_with(b"\x7fELF") {
            continue;
        }
        let file = folder.path().join(path);
        let said = output("readelf", &["--wide", "--dynamic", "--version-info"], &file)?;
        let wrong = foreign(&said).or_else(|| newest(&said).filter(|of| is_newer(of, C_LIBRARY)));
        let wrong = wrong.map(|what| format!("{path} needs {what}, not glibc {C_LIBRARY} alone"));
        ensure!(wrong.is_none(), wrong.unwrap_or_default());
    }
    let said = output(
        "nm",
        &["-D", "--defined-only", "--with-symbol-versions"],
        &folder.path().join(VERBS),
    )?;
    let listed = std::fs::read_to_string(tree.join(SYMBOLS)).context(SYMBOLS)?;
    let missing = missing(&listed, &said);
    ensure!(missing.is_empty(), "{VERBS} has no {}", missing.join(", "));
    let open = open(&said);
    ensure!(open.is_none(), "{VERBS} shows every program its own {}", open.unwrap_or_default());
    Ok(())
}

/// A library that a program loads and glibc does not bring.
fn foreign(said: &str) -> Option<String> {
    let needed = said.lines().filter(|line| line.contains("(NEEDED)"));
    let mut names = needed.filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']')));
    let own = |name: &&str| C_LIBRARY_FILES.iter().any(|own| name.starts_with(own));
    names.find(|name| !own(name)).map(str::to_owned)
}

/// The newest version of glibc that a program's symbols have: `2.28`.
fn newest(said: &str) -> Option<String> {
    let versions = said.split("GLIBC_").skip(1);
    let numbers = versions.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        &rest[..end]
    });
    numbers
        .filter(|number| !number.is_empty())
        .max_by_key(|number| parts(number))
        .map(str::to_owned)
}

fn is_newer(version: &str, than: &str) -> bool {
    parts(version) > parts(than)
}

fn parts(version: &str) -> Vec<u32> {
    version.split('.').map(|part| part.parse().unwrap_or(u32::MAX)).collect()
}

/// Lines of the list that nm does not name.
fn missing<'a>(listed: &'a str, said: &str) -> Vec<&'a str> {
    let defined: std::collections::BTreeSet<&str> =
        said.lines().filter_map(|line| line.split(' ').next_back()).collect();
    let listed = listed.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    listed.filter(|symbol| !defined.contains(symbol)).collect()
}

/// A symbol that is Rust's or a label of ours, which no program may find.
fn open(said: &str) -> Option<&str> {
    let mut symbols = said.lines().filter_map(|line| line.split(' ').next_back());
    let begins = ["_R", "_ZN", "rust_", "_Unwind_", "peerdma_export_"];
    symbols.find(|symbol| begins.iter().any(|begin| symbol.starts_with(begin)))
}

fn output(tool: &str, arguments: &[&str], file: &Path) -> Result<String> {
    let output = Command::new(tool).args(arguments).arg(file).env("LC_ALL", "C").output();
    let output = output.with_context(|| format!("{tool} (package binutils)"))?;
    ensure!(output.status.success(), "{tool} cannot read {}", file.display());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
        0x0000000000000001 (NEEDED)             Shared library: [libpthread.so.0]\n\
        0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]\n\
        0x0010:   Name: GLIBC_2.2.5  Flags: none  Version: 8\n\
        0x0020:   Name: GLIBC_2.28  Flags: none  Version: 7\n\
        0x0030:   Name: GLIBC_2.9  Flags: none  Version: 6\n";

    #[test]
    fn versions_are_numbers_and_not_text() {
        assert_eq!(newest(SAID).as_deref(), Some("2.28"));
        assert!(is_newer("2.30", "2.28") && is_newer("2.28.1", "2.28"));
        assert!(!is_newer("2.28", "2.28") && !is_newer("2.9", "2.28"));
    }

    #[test]
    fn a_library_of_others_is_found() {
        assert_eq!(foreign(SAID), None);
        let more = format!("{SAID} 0x1 (NEEDED)    Shared library: [libgcc_s.so.1]\n");
        assert_eq!(foreign(&more).as_deref(), Some("libgcc_s.so.1"));
    }

    #[test]
    fn a_symbol_without_its_version_is_missing() {
        let said = "0000 T ibv_open_device@@IBVERBS_1.1\n0000 T ibv_close_device\n";
        let listed = "# a list\nibv_open_device@@IBVERBS_1.1\nibv_close_device@@IBVERBS_1.1\n";
        assert_eq!(missing(listed, said), ["ibv_close_device@@IBVERBS_1.1"]);
        assert_eq!(open(said), None);
    }

    #[test]
    fn a_symbol_of_rusts_is_open() {
        let said = "0000 T munmap\n0000 T rust_eh_personality\n";
        assert_eq!(open(said), Some("rust_eh_personality"));
    }
}
