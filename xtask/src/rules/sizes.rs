//! How much a file and a folder may hold: what is more than a person keeps in mind holds more than
//! one idea.

use super::workspace::within;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Lines of a file, its tests among them.
const MOST_LINES: usize = 500;
/// Files that lie directly in a folder.
const MOST_FILES: usize = 15;

/// Files that are too long.
pub fn long_files(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let count = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        (within(root, file), text.lines().count())
    };
    let words = |lines| format!("has {lines} lines: give each idea its file");
    over(files.iter().map(count), MOST_LINES, words)
}

/// Folders with too many files.
pub fn full_folders(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let mut folders: BTreeMap<String, usize> = BTreeMap::new();
    for folder in files.iter().filter_map(|file| file.parent()) {
        *folders.entry(within(root, folder)).or_default() += 1;
    }
    let words = |files| format!("has {files} files: give each idea its folder");
    over(folders.into_iter(), MOST_FILES, words)
}

fn over(
    sizes: impl Iterator<Item = (String, usize)>,
    most: usize,
    words: impl Fn(usize) -> String,
) -> Vec<String> {
    let over = sizes.filter(|(_, size)| *size > most);
    over.map(|(place, size)| format!("{place} {}", words(size))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_over_the_limit_is_named() {
        let sizes = [("a", 3), ("b", 4), ("c", 5)].map(|(at, size)| (at.to_owned(), size));
        let over = over(sizes.into_iter(), 3, |size| format!("has {size}"));
        assert_eq!(over, ["b has 4", "c has 5"]);
    }
}
