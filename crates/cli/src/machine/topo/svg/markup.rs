//! SVG as text: lines, points, escaped words, and the colours of ways.

use std::fmt::Write as _;

/// Colours that differ clearly on white, also for most who do not see all colours.
pub const PALETTE: [&str; 8] =
    ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7b3294", "#8c510a"];

/// Adds a line. Writing into a string does not fail.
pub fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    let _ = writeln!(out, "{line}");
}

/// No more than as many characters, and a sign where there were more.
pub fn cut(text: String, most: usize) -> String {
    if text.chars().nth(most).is_none() {
        return text;
    }
    text.chars().take(most.saturating_sub(1)).chain(['…']).collect()
}

/// Corners as an attribute names them.
pub fn points(corners: &[(f64, f64)]) -> String {
    let pairs: Vec<String> = corners.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    pairs.join(" ")
}

/// A text as the content of an element, or as an attribute in quotes.
pub fn escape(text: &str) -> String {
    let text = topology::printable(text);
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_cut_says_so() {
        assert_eq!(cut("abc".into(), 3), "abc");
        assert_eq!(cut("abcd".into(), 3), "ab…");
        assert_eq!(cut("abcd".into(), 0), "…");
    }
}
