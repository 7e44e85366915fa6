//! What there is to look at: the crates of the workspace, their roots, and files of ours.

use std::path::{Path, PathBuf};

/// Crates of the workspace, by their folders from its root.
pub fn crates(root: &Path) -> Vec<PathBuf> {
    let rooms = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let rooms = rooms.map(|room| room.path()).filter(|room| room.join("Cargo.toml").is_file());
    let mut all: Vec<PathBuf> = rooms.collect();
    all.sort();
    all.extend(["tests", "xtask", "fuzz"].map(|room| root.join(room)));
    all
}

/// Roots of a crate's library and program.
pub fn crate_roots(room: &Path) -> impl Iterator<Item = PathBuf> {
    let roots = ["lib.rs", "main.rs"].map(|name| room.join("src").join(name));
    roots.into_iter().filter(|root| root.is_file())
}

/// Every Rust file of ours.
pub fn sources(root: &Path) -> Vec<PathBuf> {
    let folders = ["crates", "tests", "fuzz/tests", "xtask"];
    let files = folders.iter().flat_map(|folder| rust_files(&root.join(folder)));
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    files
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    files_ending(folder, &["rs"])
}

/// Files below a folder whose names end like this.
pub fn files_ending(folder: &Path, ends: &[&str]) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries
        .flatten()
        .flat_map(|entry| {
            let path = entry.path();
            if path.is_dir() {
                files_ending(&path, ends)
            } else if path.extension().is_some_and(|end| ends.iter().any(|own| end == *own)) {
                vec![path]
            } else {
                Vec::new()
            }
        })
        .collect()
}

/// A path from the workspace's root.
pub fn within(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned()
}
