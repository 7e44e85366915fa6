//! Rules of the house that a compiler does not check: where unsafe code may live, how much a file,
//! a folder and a circle of files may hold, which tests may be skipped, where links lead, what may
//! be depended on.

mod circles;
mod deny;
mod modules;
mod prose;
mod rooms;
mod sizes;
mod unsafe_code;
mod workspace;

use crate::allowed::{self, Allowed};
use crate::docs;
use std::path::Path;
use workspace::{files_ending, sources};

/// Each rule, and what breaks it.
pub fn check(root: &Path, allowed: &Allowed) -> Vec<(&'static str, Vec<String>)> {
    let files = sources(root);
    let mut all = files.clone();
    all.extend(files_ending(&root.join("tests/c"), &["c", "h"]));
    vec![
        ("safe rooms forbid unsafe code", unsafe_code::not_forbidden(root)),
        ("unsafe code is in the files that may have it", unsafe_code::elsewhere(root)),
        ("a file holds one idea", sizes::long_files(root, &files)),
        ("a folder holds one idea", sizes::full_folders(root, &all)),
        ("no circle of files is large", circles::broken(root)),
        ("ARCHITECTURE.md has every room", rooms::without_row(root)),
        ("prose ends at column 100", prose::too_wide(root)),
        ("no source counts on who knows the plan", plans(root)),
        ("a test that may be skipped exists", unknown_tests(root, allowed)),
        ("a link leads somewhere", docs::broken_links(root)),
        ("a file that is named is there", docs::missing_files(root, &files)),
        ("a dependency is allowed by deny.toml", deny::refused(root)),
    ]
}

/// Lines that point to a number in a list of tasks, which a reader does not have.
fn plans(root: &Path) -> Vec<String> {
    let mut files = sources(root);
    files.extend(files_ending(&root.join("tests/c"), &["c", "h"]));
    let lines = files.iter().flat_map(|file| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let found: Vec<usize> = text
            .lines()
            .zip(1..)
            .filter(|(line, _)| names_a_task(line))
            .map(|(_, at)| at)
            .collect();
        found.into_iter().map(|at| format!("{}:{at} names a task by its number", file.display()))
    });
    lines.collect()
}

fn names_a_task(line: &str) -> bool {
    let words: Vec<&str> = line.split(|letter: char| !letter.is_alphanumeric()).collect();
    let is_number = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    words.windows(2).any(|two| ["issue", "proof"].contains(&two[0]) && is_number(two[1]))
}

/// Entries of the list that name no function of any source: the test has gone, the entry has not.
fn unknown_tests(root: &Path, allowed: &Allowed) -> Vec<String> {
    let files = sources(root).into_iter();
    let text: String = files.filter_map(|file| std::fs::read_to_string(file).ok()).collect();
    let exists = |test: &str| {
        let name = test.rsplit("::").next().unwrap_or(test);
        match test.strip_prefix(allowed::SUITE) {
            Some(suite) => text.contains(&format!("\"{suite}\",")),
            None => text.contains(&format!("fn {name}(")),
        }
    };
    let gone = allowed.tests().filter(|test| !exists(test));
    gone.map(|test| format!("{} names {test}, which is no test", allowed::FILE)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_in_a_list_of_tasks_is_found() {
        assert!(names_a_task(&format!("//! What it is ({} 7).", "issue")));
        assert!(!names_a_task("// Linux's issue is another; proof of 7 packets"));
    }
}
