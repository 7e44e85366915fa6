//! Rules of the house that a compiler does not check: where unsafe code may live, how long a file may be, which tests may be
//! skipped, where links lead.

use crate::allowed::{self, Allowed};
use crate::docs;
use std::path::{Path, PathBuf};

/// Rooms that must forbid unsafe code altogether.
const SAFE_ROOMS: &[&str] = &[
    "wire",
    "pcie",
    "umem",
    "transport",
    "hca",
    "sysfs",
    "descriptors",
    "vfio-user",
    "mlx5",
    "subnet",
    "vm",
    "vgpu",
    "test-support",
];
/// Lines of code past which a file surely holds more than one idea.
const MAX_LINES: usize = 1000;

/// Each rule, and what breaks it.
pub fn check(root: &Path, allowed: &Allowed) -> [(&'static str, Vec<String>); 4] {
    let files = rust_files(&root.join("crates"));
    [
        ("safe rooms forbid unsafe code", unsafe_rooms(root)),
        ("a file holds one idea", files.iter().filter_map(|file| too_long(file)).collect()),
        ("a test that may be skipped exists", unknown_tests(root, allowed)),
        ("a link leads somewhere", docs::broken_links(root)),
    ]
}

fn unsafe_rooms(root: &Path) -> Vec<String> {
    let forbids = |room: &&str| {
        let source = root.join("crates").join(room).join("src");
        ["lib.rs", "main.rs"]
            .iter()
            .filter_map(|name| std::fs::read_to_string(source.join(name)).ok())
            .any(|text| text.contains("#![forbid(unsafe_code)]"))
    };
    let wrong = SAFE_ROOMS.iter().filter(|room| !forbids(room));
    wrong.map(|room| format!("crates/{room} does not forbid unsafe code")).collect()
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
