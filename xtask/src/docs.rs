//! The documents that a person reads: `cargo xtask docs` makes the book, and the house rules check
//! that every link of README, ARCHITECTURE, CONTRIBUTING and the book leads to a file, and to a
//! heading of it where it names one, and that every source file they name is there. Nothing is
//! fetched.

use crate::tools;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Documents outside of the book.
const PAGES: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"];

/// Links that lead nowhere, each with the file it is in.
pub fn broken_links(root: &Path) -> Vec<String> {
    pages(root).iter().flat_map(|page| broken_in(page)).collect()
}

/// Source files that a page names and that are not among `files`, each with the page. A name begins
/// with the room, without its `src`, or with a folder of it: `hca/device/turn.rs`,
/// `tests/moves.rs`.
pub fn missing_files(root: &Path, files: &[PathBuf]) -> Vec<String> {
    let paths: Vec<String> =
        files.iter().map(|file| file.to_string_lossy().replace("/src/", "/")).collect();
    let is_there = |name: &str| {
        let end = format!("/{}", name.replace("/src/", "/"));
        paths.iter().any(|path| path.ends_with(&end))
    };
    let mut missing = Vec::new();
    for page in pages(root) {
        let text = std::fs::read_to_string(&page).unwrap_or_default();
        let named = named_files(&text).filter(|name| !is_there(name));
        missing.extend(named.map(|name| format!("{}: there is no {name}", page.display())));
    }
    missing
}

/// Names of Rust files in code spans, with a folder at least.
fn named_files(text: &str) -> impl Iterator<Item = &str> {
    let spans = prose(text).flat_map(|line| line.split('`').skip(1).step_by(2));
    spans.filter(|span| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '.');
        span.ends_with(".rs") && span.contains('/') && span.chars().all(plain)
    })
}

fn pages(root: &Path) -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> = PAGES.iter().map(|page| root.join(page)).collect();
    pages_below(&root.join("docs/src"), &mut pages);
    pages
}

/// Makes the book in `target/book`, by `mdbook` or one that is installed into `target/tools`.
pub fn build() -> Result<bool> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("no workspace")?;
    let broken = broken_links(root);
    broken.iter().for_each(|line| println!("{line}"));
    let status =
        Command::new(tools::MDBOOK.installed()?).arg("build").arg(root.join("docs")).status()?;
    Ok(status.success() && broken.is_empty())
}

fn pages_below(folder: &Path, pages: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            pages_below(&path, pages);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
}

fn broken_in(page: &Path) -> Vec<String> {
    let Ok(text) = std::fs::read_to_string(page) else {
        return vec![format!("{} cannot be read", page.display())];
    };
    let leads_nowhere = |link: &String| {
        let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
        let folder = page.parent().unwrap_or(page);
        let target = if path.is_empty() { page.to_owned() } else { folder.join(path) };
        let has_anchor = || {
            let text = std::fs::read_to_string(&target).unwrap_or_default();
            prose(&text).filter_map(heading).any(|heading| heading == anchor)
        };
        !target.exists() || !(anchor.is_empty() || has_anchor())
    };
    let wrong = links(&text).into_iter().filter(leads_nowhere);
    wrong.map(|link| format!("{}: {link} leads nowhere", page.display())).collect()
}

/// Lines outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Targets of links and pictures that are not addresses of the web.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for line in prose(text) {
        for rest in line.split("](").skip(1) {
            let link = rest.split(')').next().unwrap_or(rest);
            if !link.contains("://") && !link.starts_with("mailto:") {
                links.push(link.to_owned());
            }
        }
    }
    links
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn heading(line: &str) -> Option<String> {
    let title = line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))?;
    let lower = title.trim().to_lowercase();
    let kept = lower.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    Some(kept.map(|c| if c == ' ' { '-' } else { c }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_prose_are_found_and_those_of_the_web_left() {
        let text = "[a](b.md) and [c](d.md#e)\n```\n[f](g)\n```\n[h](https://i)";
        assert_eq!(links(text), ["b.md", "d.md#e"]);
    }

    #[test]
    fn files_that_are_named_are_looked_for_with_their_folders() {
        let text = "`hca/turn.rs` decides, `Qp` and `qp.rs` do; `a b/c.rs`.\n`tests/moves.rs`";
        assert!(named_files(text).eq(["hca/turn.rs", "tests/moves.rs"]));
    }

    #[test]
    fn a_heading_is_found_by_its_anchor() {
        assert_eq!(heading("## What is trusted, and `not`").unwrap(), "what-is-trusted-and-not");
        assert_eq!(heading("#!/bin/sh"), None);
    }

    #[test]
    fn a_link_to_what_is_not_there_is_told() {
        let folder = std::env::temp_dir().join(format!("links-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let page = folder.join("page.md");
        std::fs::write(&page, "# One\n[a](#one) [b](#two) [c](page.md#one) [d](gone.md)").unwrap();
        let broken = broken_in(&page);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(broken.len(), 2, "{broken:?}");
        assert!(broken[0].contains("#two") && broken[1].contains("gone.md"));
    }
}
