//! Gives the cdylib its soname, and writes the functions of `entry-points.txt` that no source here
//! has.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=entry-points.txt");
    println!("cargo::rerun-if-changed=src");
    let table = fs::read_to_string("entry-points.txt").expect("entry-points.txt is in the crate");
    let named = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let symbols: BTreeSet<&str> = table.lines().filter(named).collect();
    let built = built(Path::new("src"));
    for symbol in &built {
        assert!(symbols.contains(symbol.as_str()), "{symbol} is not in the table");
    }
    let mut text = String::new();
    for symbol in symbols.iter().filter(|symbol| !built.contains(**symbol)) {
        writeln!(
            text,
            "#[unsafe(no_mangle)]\npub extern \"C\" fn {symbol}() -> u32 {{\n    \
             crate::missing(\"{symbol}\")\n}}"
        )
        .expect("strings take all");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("entries.rs"), text).expect("OUT_DIR is writable");
}

/// The functions that the sources define: `fn nvmlA(`.
fn built(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("the sources").flatten() {
        let text = fs::read_to_string(entry.path()).expect("a source");
        let names = text.lines().filter_map(|line| line.split_once("fn nvml"));
        let name =
            |rest: &str| format!("nvml{}", rest.split('(').next().unwrap_or_default().trim());
        found.extend(names.map(|(_, rest)| name(rest)));
    }
    found
}
