//! That no test program is left out: the manifest lists them, since they lie in folders by story,
//! where cargo looks for none.

use std::path::{Path, PathBuf};

/// Files of `folder` and of the folders in it, with the program of a folder that has a `main.rs`.
fn programs(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    if files.iter().any(|file| file.ends_with("main.rs")) {
        return vec![folder.join("main.rs")];
    }
    files.into_iter().chain(folders.iter().flat_map(|folder| programs(folder))).collect()
}

#[test]
fn every_file_of_tests_is_a_program() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let left_out = |path: &&PathBuf| {
        let path = path.strip_prefix(root).expect("a path below").display();
        !manifest.contains(&format!("path = \"{path}\"\n"))
    };
    let programs = programs(&root.join("tests"));
    assert_eq!(programs.iter().find(left_out), None, "no entry in tests/Cargo.toml");
    assert_eq!(programs.len(), manifest.matches("[[test]]").count());
}
