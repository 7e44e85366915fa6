//! Rules of the house that a compiler does not check: where unsafe code may live, how long a file may be.

use std::path::{Path, PathBuf};

/// Rooms that must forbid unsafe code altogether.
const SAFE_ROOMS: &[&str] = &[
    "wire",
    "pcie",
    "umem",
    "hca",
    "sysfs",
    "descriptors",
    "vfio-user",
    "mlx5",
    "subnet",
    "vm",
    "vgpu",
];
/// Lines of code past which a file surely holds more than one idea.
const MAX_LINES: usize = 1000;

/// Every violation, in words. Also says how many rules were looked at.
pub fn check(root: &Path) -> (usize, Vec<String>) {
    let mut wrong = Vec::new();
    for room in SAFE_ROOMS {
        let source = root.join("crates").join(room).join("src");
        let entry = ["lib.rs", "main.rs"].map(|name| source.join(name));
        let forbids = entry
            .iter()
            .filter_map(|file| std::fs::read_to_string(file).ok())
            .any(|s| s.contains("#![forbid(unsafe_code)]"));
        if !forbids {
            wrong.push(format!("crates/{room} does not forbid unsafe code"));
        }
    }
    let files = rust_files(&root.join("crates"));
    for file in &files {
        let lines = std::fs::read_to_string(file).unwrap_or_default().lines().count();
        if lines > MAX_LINES {
            wrong.push(format!("{} has {lines} lines: give each idea its file", file.display()));
        }
    }
    (SAFE_ROOMS.len() + files.len(), wrong)
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .flat_map(|entry| {
            let path = entry.path();
            if path.is_dir() {
                rust_files(&path)
            } else if path.extension().is_some_and(|e| e == "rs") {
                vec![path]
            } else {
                Vec::new()
            }
        })
        .collect()
}
