//! Gives the cdylib its soname and its symbol version, and writes what exports each function of
//! `entry-points.txt`: one that a source in `src/calls` has, or one that says that it is not there.
//!
//! Programs that are linked to NVIDIA's library ask for each name of the version `libcudart.so.12`.
//! Only lld accepts a version script beside rustc's own: it is rustc's default linker on x86-64;
//! elsewhere an option makes the C compiler use it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

/// Soname and version node.
const NAME: &str = "libcudart.so.12";

fn main() {
    println!("cargo::rerun-if-changed=entry-points.txt");
    println!("cargo::rerun-if-changed=src/calls");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let map = out.join("libcudart.map");
    // A linker script, and not a version script as rustc's own is: zig's linker takes one of those
    // only.
    fs::write(&map, format!("VERSION {{ {NAME} {{ }}; }}\n")).expect("OUT_DIR is writable");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{NAME}");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-T,{}", map.display());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    if std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|processor| processor != "x86_64") {
        println!("cargo::rustc-cdylib-link-arg=-fuse-ld=lld");
    }
    let table = fs::read_to_string("entry-points.txt").expect("entry-points.txt is in the crate");
    fs::write(out.join("exports.rs"), exports(&table)).expect("OUT_DIR is writable");
}

/// The source that exports all names of the table.
fn exports(table: &str) -> String {
    let built = built(Path::new("src/calls"));
    let names: Vec<&str> = table.lines().filter(|line| !line.starts_with('#')).collect();
    for name in built.keys() {
        assert!(names.contains(&name.as_str()), "{name} is not in the table");
    }
    let mut text = String::new();
    for name in names {
        let line = match built.get(name) {
            Some(module) => format!("export!(\"{name}\", crate::calls::{module}::{name});"),
            None => format!(
                "extern \"C\" fn {name}() -> u32 {{ crate::missing(\"{name}\") }}\n\
                 export!(\"{name}\", {name});"
            ),
        };
        writeln!(text, "{line}").expect("strings take all");
    }
    text
}

/// The functions that the sources define, and the module of each: `fn cudaA(` and
/// `fn cudaA, cudaA_ptsz (` in the macros of `ffi.rs`.
fn built(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("a folder of calls").flatten() {
        let file = entry.path();
        let module = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).expect("a source");
        for line in text.lines() {
            let Some((_, rest)) = line.split_once("fn ") else { continue };
            if !rest.starts_with("cuda") && !rest.starts_with("__cuda") {
                continue;
            }
            let names = rest.split('(').next().unwrap_or_default().split(',');
            found.extend(names.map(|name| (name.trim().to_owned(), module.clone())));
        }
    }
    found
}
