//! Where the plots go: into a folder, and with it onto the book's page.

use super::record::Stamp;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The page, from the workspace's root.
const PAGE: &str = "docs/src/explanation/performance.md";
/// What the page's part about the plots lies between.
const BORDERS: [&str; 2] = ["<!-- curves -->\n", "<!-- end of curves -->\n"];
/// A plot, and what it shows.
const PLOTS: [(&str, &str); 4] = [
    ("bandwidth", "Bandwidth by message size"),
    ("latency", "Latency by message size"),
    ("rate", "Messages of 8 bytes a second by queue pairs"),
    ("cpu", "CPU time of both ends a byte, by message size"),
];

/// Where a record and its plots are left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Beside what is built.
    Target,
    /// Among the book's pictures.
    Book,
}

impl Place {
    /// The folder.
    pub fn folder(self) -> PathBuf {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        match self {
            Place::Target => root.join("target/curves"),
            Place::Book => root.join("docs/src/pictures"),
        }
    }
}

/// Draws the record that lies in `folder` beside it; false when that fails, which is told.
///
/// # Errors
/// When it cannot be tried.
pub fn draw(folder: &Path) -> Result<bool> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/pictures.sh");
    let folder = folder.canonicalize()?;
    let drawn = Command::new("sh").arg(script).arg("--curves").arg(&folder).status()?;
    PLOTS.iter().for_each(|(name, _)| eprintln!("{}/curves-{name}.svg", folder.display()));
    Ok(drawn.success())
}

/// Has the book's page show the plots, and on what they were measured.
///
/// # Errors
/// When the page cannot be read or written, or has no place for them.
pub fn show_on_page(stamp: &Stamp) -> Result<()> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PAGE);
    let text = std::fs::read_to_string(&page).context(PAGE)?;
    let mut part = format!("{stamp}\n");
    for (name, what) in PLOTS {
        part += &format!("\n![{what}](../pictures/curves-{name}.svg)\n");
    }
    Ok(std::fs::write(&page, replaced(&text, &part)?)?)
}

/// The page with another part between the borders.
fn replaced(page: &str, part: &str) -> Result<String> {
    let cut = page.split_once(BORDERS[0]);
    let cut = cut.and_then(|(before, rest)| Some((before, rest.split_once(BORDERS[1])?.1)));
    let (before, after) = cut.with_context(|| format!("{PAGE} lacks {BORDERS:?}"))?;
    ensure!(!after.contains(BORDERS[0]), "{PAGE} has two places for the plots");
    let [begin, end] = BORDERS;
    Ok(format!("{before}{begin}\n{part}\n{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_borders_is_replaced() {
        let page = format!("a\n{}old\n{}b\n", BORDERS[0], BORDERS[1]);
        let once = replaced(&page, "new\n").unwrap();
        assert_eq!(once, format!("a\n{}\nnew\n\n{}b\n", BORDERS[0], BORDERS[1]));
        assert_eq!(replaced(&once, "new\n").unwrap(), once);
        assert!(replaced("a\n", "new\n").is_err());
    }

    #[test]
    fn the_page_has_a_place() {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(PAGE);
        replaced(&std::fs::read_to_string(page).unwrap(), "").unwrap();
    }
}
