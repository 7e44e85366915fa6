//! What the build scripts of `libcudart12` and `libcudart13` share: gives a cdylib its soname and
//! its symbol version, and writes what exports each function of the version's `entry-points.txt`:
//! one that a source in `src/calls` here has, or one that says that it is not there.
//!
//! Programs that are linked to NVIDIA's library ask for each name of the version `libcudart.so.12`
//! or `libcudart.so.13`. Only lld accepts a version script beside rustc's own: it is rustc's
//! default linker on x86-64; elsewhere an option makes the C compiler use it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// The functions, as the libraries' packages see them.
const CALLS: &str = "../libcudart/src/calls";
/// The versions of CUDA, each with the folder of the functions that only it has so.
const OWN: [(u32, &str); 2] = [(12, "of_12"), (13, "of_13")];
/// What stands behind a name in CUDA 13's table that means another thing in CUDA 12.
const CHANGED: &str = " changed";

/// Builds the library for programs of this version of CUDA.
pub fn build(version: u32) {
    let name = format!("libcudart.so.{version}");
    println!("cargo::rerun-if-changed={CALLS}");
    println!("cargo::rerun-if-changed=../libcudart/library.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let map = out.join("libcudart.map");
    // A linker script, and not a version script as rustc's own is: zig's linker takes one of those
    // only.
    fs::write(&map, format!("VERSION {{ {name} {{ }}; }}\n")).expect("OUT_DIR is writable");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{name}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-T,{}", map.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|processor| processor != "x86_64") {
        println!("cargo::rustc-cdylib-link-arg=-fuse-ld=lld");
    }
    fs::write(out.join("exports.rs"), exports(&name, version)).expect("OUT_DIR is writable");
}

/// The source that exports all names of the table.
fn exports(library: &str, version: u32) -> String {
    let folder = OWN.iter().find(|(number, _)| *number == version).expect("a version of CUDA").1;
    let (shared, own, table) = (built(None), built(Some(folder)), table_of(version));
    let mut text = String::new();
    for (name, is_changed) in table.lines().filter_map(row) {
        let line = match (shared.get(name), own.get(name)) {
            (Some(module), own) if is_changed || own.is_some() => panic!(
                "{name} is not the same in CUDA 12 and 13: it belongs in the folders of both, and \
                 not in {module}"
            ),
            (Some(module), _) | (None, Some(module)) => {
                format!("cuda_runtime::export!(\"{library}\", \"{name}\", {module}::{name});")
            }
            (None, None) => format!(
                "extern \"C\" fn {name}() -> u32 {{ cuda_runtime::missing(\"{name}\") }}\n\
                 cuda_runtime::export!(\"{library}\", \"{name}\", {name});"
            ),
        };
        writeln!(text, "{line}").expect("strings take all");
    }
    have_rows(&own, &table);
    have_rows(&shared, &OWN.map(|(version, _)| table_of(version)).concat());
    text
}

/// That every function that a source has is in a table.
fn have_rows(found: &BTreeMap<String, String>, table: &str) {
    let names: BTreeSet<&str> = table.lines().filter_map(row).map(|(name, _)| name).collect();
    for (name, module) in found {
        assert!(names.contains(name.as_str()), "{name} of {module} is not in the table");
    }
}

/// A line of a table: the name, and whether it means another thing than in CUDA 12.
fn row(line: &str) -> Option<(&str, bool)> {
    let name = line.strip_suffix(CHANGED);
    (!line.starts_with('#')).then_some((name.unwrap_or(line), name.is_some()))
}

/// The table of a version of CUDA.
fn table_of(version: u32) -> String {
    let file = format!("../libcudart{version}/entry-points.txt");
    println!("cargo::rerun-if-changed={file}");
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The functions that sources define, and the module of each: those that are the same in all
/// versions, or those in the folder of one.
fn built(own: Option<&str>) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let (folder, module) = (PathBuf::from(CALLS), "cuda_runtime::calls".to_owned());
    match own {
        Some(own) => search(&folder.join(own), &format!("{module}::{own}"), &mut found),
        None => search(&folder, &module, &mut found),
    }
    found
}

/// Looks for `fn cudaA(`, and for `fn cudaA, cudaA_ptsz (` in the macros of `ffi.rs`, in all
/// sources below a folder but those of single versions.
fn search(folder: &Path, module: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("a folder of calls").flatten() {
        let file = entry.path();
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let inner = if name == "mod" { module.to_owned() } else { format!("{module}::{name}") };
        if file.is_dir() {
            if OWN.iter().all(|(_, own)| *own != name) {
                search(&file, &inner, found);
            }
            continue;
        }
        let text = fs::read_to_string(&file).expect("a source");
        for line in text.lines() {
            let Some((_, rest)) = line.split_once("fn ") else { continue };
            if !rest.starts_with("cuda") && !rest.starts_with("__cuda") {
                continue;
            }
            let names = rest.split('(').next().unwrap_or_default().split(',');
            found.extend(names.map(|name| (name.trim().to_owned(), inner.clone())));
        }
    }
}
