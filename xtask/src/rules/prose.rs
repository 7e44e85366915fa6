//! Where lines of prose end: comments of sources, and text of pages. Code is rustfmt's matter; rows
//! of tables, links and what stands in fences cannot be broken.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The last column of a line.
const WIDTH: usize = 100;
/// What begins a line of prose, by how the file's name ends.
const COMMENTS: &[(&str, &[&str])] = &[
    ("rs", &["//"]),
    ("c", &["/*", "*", "//"]),
    ("h", &["/*", "*", "//"]),
    ("py", &["#"]),
    ("sh", &["#"]),
    ("toml", &["#"]),
];

/// Lines of the repository's files that are too wide, in words.
pub fn too_wide(root: &Path) -> Vec<String> {
    tracked(root).iter().flat_map(|file| wide_lines(root, file)).collect()
}

/// Every file of the repository; none where git does not know one.
fn tracked(root: &Path) -> Vec<PathBuf> {
    let listed = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output();
    let listed = listed.map(|output| output.stdout).unwrap_or_default();
    let names = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| PathBuf::from(String::from_utf8_lossy(name).into_owned())).collect()
}

fn wide_lines(root: &Path, file: &Path) -> Vec<String> {
    let kind = file.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
    let begins = COMMENTS.iter().find(|(name, _)| *name == kind).map(|(_, begins)| *begins);
    if begins.is_none() && kind != "md" {
        return Vec::new();
    }
    let text = std::fs::read_to_string(root.join(file)).unwrap_or_default();
    let wide = text_lines(&text, begins).filter(|(_, line)| width(line) > WIDTH);
    wide.map(|(number, _)| format!("{}:{number} ends beyond it", file.display())).collect()
}

/// The lines of prose with their numbers; a page's, where comments begin with nothing.
fn text_lines<'a>(
    text: &'a str,
    begins: Option<&'a [&'a str]>,
) -> impl Iterator<Item = (usize, &'a str)> {
    let mut fenced = false;
    let mut is_prose = move |line: &str| {
        let inner = line.trim_start();
        let body = match begins {
            Some(begins) => begins.iter().find_map(|begin| inner.strip_prefix(begin)),
            None => Some(inner),
        };
        let Some(body) = body else { return false };
        let body = body.trim_start_matches(['/', '!', '*', ' ']);
        if begins.is_none() && body.starts_with("```") {
            fenced = !fenced;
        }
        !(fenced || body.starts_with('|') || body.contains("://") || body.contains("]("))
    };
    (1..).zip(text.lines()).filter(move |(_, line)| is_prose(line))
}

/// Columns of a line, tabs to every eighth.
fn width(line: &str) -> usize {
    line.chars().fold(0, |column, c| if c == '\t' { column / 8 * 8 + 8 } else { column + 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wide(name: &str, text: &str) -> Vec<String> {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(name), text).unwrap();
        wide_lines(root.path(), Path::new(name))
    }

    #[test]
    fn prose_ends_and_code_does_not() {
        let long = "word ".repeat(20) + "end";
        assert_eq!(wide("a.rs", &format!("{long}\n    /// {long}\n")), ["a.rs:2 ends beyond it"]);
        assert_eq!(wide("a.c", &format!("\t * {long}\n")), ["a.c:1 ends beyond it"]);
        assert_eq!(
            wide("a.toml", &format!("a = \"{long}\"\n# {long}")),
            ["a.toml:2 ends beyond it"]
        );
        let page = format!("{long}\n| {long}\n```\n{long}\n```\n{long}\n[a](b) {long}\n");
        assert_eq!(wide("a.md", &page), ["a.md:1 ends beyond it", "a.md:6 ends beyond it"]);
        assert_eq!(wide("a.bin", &long), [""; 0]);
    }

    #[test]
    fn a_tab_goes_to_the_next_eighth_column() {
        assert_eq!([width("\ta"), width("abc\t"), width("é")], [9, 8, 1]);
    }
}
