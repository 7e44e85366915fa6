//! Rules of the house that a compiler does not check: where unsafe code may live, how long a file may be, which tests may be
//! skipped, where links lead, what may be depended on.

use crate::allowed::{self, Allowed};
use crate::deny;
use crate::docs;
use std::path::{Path, PathBuf};

/// The rooms that unsafe code may live in, as ARCHITECTURE.md tells; every other one must forbid it altogether.
const UNSAFE_ROOMS: &[&str] = &[
    "cli",
    "dmabuf",
    "gpu",
    "engine-thread",
    "link",
    "mm",
    "peerdma",
    "registry",
    "shim",
    "shm",
    "verbs",
];
/// Lines of code past which a file surely holds more than one idea.
const MAX_LINES: usize = 1000;

/// Each rule, and what breaks it.
pub fn check(root: &Path, allowed: &Allowed) -> [(&'static str, Vec<String>); 5] {
    let files = rust_files(&root.join("crates"));
    [
        ("safe rooms forbid unsafe code", unsafe_rooms(root)),
        ("a file holds one idea", files.iter().filter_map(|file| too_long(file)).collect()),
        ("a test that may be skipped exists", unknown_tests(root, allowed)),
        ("a link leads somewhere", docs::broken_links(root)),
        ("a dependency is allowed by deny.toml", deny::refused(root)),
    ]
}

fn unsafe_rooms(root: &Path) -> Vec<String> {
    let rooms = std::fs::read_dir(root.join("crates")).into_iter().flatten().flatten();
    let rooms = rooms.map(|room| room.path()).filter(|room| room.join("Cargo.toml").is_file());
    let others = ["tests", "xtask", "fuzz"].map(|room| root.join(room));
    let mut wrong: Vec<String> = rooms
        .filter(|room| !UNSAFE_ROOMS.iter().any(|name| room.ends_with(name)))
        .chain(others)
        .filter(|room| !forbids_unsafe(room))
        .map(|room| format!("{} does not forbid unsafe code", room.display()))
        .collect();
    wrong.sort();
    wrong
}

fn forbids_unsafe(room: &Path) -> bool {
    ["lib.rs", "main.rs"]
        .iter()
        .filter_map(|name| std::fs::read_to_string(room.join("src").join(name)).ok())
        .any(|text| text.lines().any(|line| line == "#![forbid(unsafe_code)]"))
}

fn too_long(file: &Path) -> Option<String> {
    let lines = std::fs::read_to_string(file).unwrap_or_default().lines().count();
    let words = || format!("{} has {lines} lines: give each idea its file", file.display());
    (lines > MAX_LINES).then(words)
}

/// Entries of the list that name no function of any source: the test has gone, the entry has not.
fn unknown_tests(root: &Path, allowed: &Allowed) -> Vec<String> {
    let folders = ["crates", "tests", "fuzz/tests", "xtask"];
    let files = folders.iter().flat_map(|folder| rust_files(&root.join(folder)));
    let text: String = files.filter_map(|file| std::fs::read_to_string(file).ok()).collect();
    let exists = |test: &str| {
        let name = test.rsplit("::").next().unwrap_or(test);
        text.contains(&format!("fn {name}("))
    };
    let gone = allowed.tests().filter(|test| !exists(test));
    gone.map(|test| format!("{} names {test}, which is no test", allowed::FILE)).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_that_nobody_named_must_forbid_unsafe_code() {
        let root = tempfile::tempdir().unwrap();
        let room = |name: &str, text: &str| {
            std::fs::create_dir_all(root.path().join(name).join("src")).unwrap();
            std::fs::write(root.path().join(name).join("Cargo.toml"), "").unwrap();
            std::fs::write(root.path().join(name).join("src/lib.rs"), text).unwrap();
        };
        for name in ["crates/wire", "tests", "xtask", "fuzz"] {
            room(name, "//! What it is.\n#![forbid(unsafe_code)]\n");
        }
        room("crates/mm", "");
        assert_eq!(unsafe_rooms(root.path()), [""; 0]);
        room("crates/new", "// #![forbid(unsafe_code)]\n");
        let [wrong] = unsafe_rooms(root.path()).try_into().unwrap();
        assert!(wrong.ends_with("crates/new does not forbid unsafe code"), "{wrong}");
    }
}
