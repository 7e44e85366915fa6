//! Gives the cdylib its soname, and writes what `entry-points.txt` says of functions that no source
//! here has, and of where `cuGetProcAddress` finds each.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=entry-points.txt");
    println!("cargo::rerun-if-changed=src/calls");
    let table = fs::read_to_string("entry-points.txt").expect("entry-points.txt is in the crate");
    let built = built(Path::new("src/calls"));
    let rows: Vec<(&str, &str)> = table.lines().filter_map(row).collect();
    let mut text = String::new();
    for (symbol, _) in rows.iter().filter(|(symbol, _)| !built.contains(*symbol)) {
        writeln!(text, "symbol! {{\n    {symbol}() {{ crate::missing(\"{symbol}\") }}\n}}")
            .expect("strings take all");
    }
    for symbol in &built {
        assert!(rows.iter().any(|(known, _)| known == symbol), "{symbol} is not in the table");
    }
    text.push_str("unsafe extern \"C\" {\n");
    for (symbol, _) in &rows {
        writeln!(text, "    #[link_name = \"{symbol}\"]\n    fn at_{symbol}() -> u32;")
            .expect("as above");
    }
    text.push_str("}\n/// Symbol, version, address of each.\npub static ENTRIES: &[Entry] = &[\n");
    for (symbol, version) in &rows {
        writeln!(
            text,
            "    Entry {{ symbol: \"{symbol}\", version: {version}, is_built: {}, address: \
             at_{symbol} }},",
            built.contains(*symbol)
        )
        .expect("as above");
    }
    text.push_str("];\n");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("entries.rs"), text).expect("OUT_DIR is writable");
}

/// Symbol and version of a line.
fn row(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    (!line.is_empty() && !line.starts_with('#')).then(|| line.split_once(' ')).flatten()
}

/// The functions that the sources define, in folders of the folder too: `fn cuA(` and
/// `fn cuA, cuA_ptsz (` in the macros of `ffi.rs`.
fn built(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(folder).expect("a folder of calls").flatten() {
        if entry.path().is_dir() {
            found.append(&mut built(&entry.path()));
            continue;
        }
        let text = fs::read_to_string(entry.path()).expect("a source");
        for line in text.lines() {
            let Some(rest) = line.trim_start().strip_prefix("fn cu") else { continue };
            let names = format!("cu{rest}");
            let names = names.split('(').next().unwrap_or_default().split(',');
            found.extend(names.map(|name| name.trim().to_owned()));
        }
    }
    found
}
