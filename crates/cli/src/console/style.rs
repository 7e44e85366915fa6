//! Colours, where a terminal reads them: `anstream` removes them elsewhere and under NO_COLOR.

use super::failure::{Context, Failure, Outcome};
use anstyle::{AnsiColor, Style};
use serde::ser::{Serialize, SerializeMap as _, Serializer};
use std::cell::Cell;
use std::fmt::{Arguments, Display};
use std::io::Write as _;

/// What a piece of text means.
#[derive(Clone, Copy)]
pub enum Paint {
    /// A proven or healthy thing, or advice.
    Good,
    /// Something that may not work.
    Warning,
    /// A failure.
    Error,
    /// A heading.
    Bold,
    /// A thing of lesser weight.
    Dim,
}

impl Paint {
    fn style(self) -> Style {
        match self {
            Paint::Good => AnsiColor::Green.on_default().bold(),
            Paint::Warning => AnsiColor::Yellow.on_default().bold(),
            Paint::Error => AnsiColor::Red.on_default().bold(),
            Paint::Bold => Style::new().bold(),
            Paint::Dim => Style::new().dimmed(),
        }
    }

    /// `text` in this colour.
    pub fn over(self, text: impl Display) -> String {
        let style = self.style();
        format!("{style}{text}{style:#}")
    }
}

/// Colours of the help text.
pub const HELP: clap::builder::Styles = clap::builder::Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// Prints a line on stdout. A reader that went away (`| head`) ends the program quietly.
pub fn outln(line: Arguments<'_>) {
    if let Err(error) = writeln!(anstream::stdout(), "{line}") {
        end(error);
    }
}

/// Prints a text as it is. A reader that went away is no failure.
pub fn print(bytes: &[u8]) -> Outcome {
    match std::io::stdout().write_all(bytes) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).what("cannot print")
        }
        _ => Ok(0),
    }
}

/// Ends the program because stdout cannot be written.
fn end(error: std::io::Error) -> ! {
    std::process::exit(match error.kind() {
        std::io::ErrorKind::BrokenPipe => 0,
        _ => i32::from(Failure::new("cannot print").because(error).report()),
    })
}

/// Prints a line on stderr.
pub fn errln(line: Arguments<'_>) {
    // Nothing can be said where stderr is closed.
    drop(writeln!(anstream::stderr(), "{line}"));
}

/// Prints a value as indented JSON on stdout.
pub fn json(value: &serde_json::Value) {
    outln(format_args!("{value:#}"));
}

/// Prints an object as indented JSON on stdout. Of its last member, a list, one value is in memory
/// at a time.
pub fn json_with_list(
    object: &serde_json::Map<String, serde_json::Value>,
    (name, list): (&str, impl Iterator<Item = serde_json::Value>),
) {
    let stdout = std::io::stdout().lock();
    let mut out = serde_json::Serializer::pretty(std::io::BufWriter::new(stdout));
    let written = (|| {
        let mut map = out.serialize_map(None)?;
        for (key, value) in object {
            map.serialize_entry(key, value)?;
        }
        map.serialize_entry(name, &Lazily(Cell::new(Some(list))))?;
        map.end()?;
        let mut out = out.into_inner();
        writeln!(out).and_then(|()| out.flush()).map_err(serde_json::Error::io)
    })();
    if let Err(error) = written {
        end(error.into());
    }
}

/// A list that is made as it is written, once.
struct Lazily<I>(Cell<Option<I>>);

impl<I: Iterator<Item = serde_json::Value>> Serialize for Lazily<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.take().into_iter().flatten())
    }
}

/// Columns of the terminal that stdout is, if it is one.
pub fn width() -> Option<usize> {
    let (width, _) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some(usize::from(width.0)).filter(|&width| width > 0)
}

/// Lines of the terminal that stdout is, if it is one.
pub fn height() -> Option<usize> {
    let (_, height) = terminal_size::terminal_size_of(std::io::stdout())?;
    Some(usize::from(height.0)).filter(|&height| height > 0)
}

/// Bytes in the unit that keeps the number short: `12.3 MiB`.
pub fn bytes(count: u64) -> String {
    let mut value = count as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") }
}

/// A number of things, whose plural ends in s.
pub fn count(number: usize, one: &str) -> String {
    format!("{number} {one}{}", if number == 1 { "" } else { "s" })
}

/// Bytes per second as people write a link's rate.
pub fn rate(bytes_per_second: u64) -> String {
    format!("{:.1} GB/s", bytes_per_second as f64 / 1e9)
}

/// Prints the lines of a table, of which the first `headings` are headings.
pub fn show(lines: Vec<String>, headings: usize) {
    for (index, line) in lines.into_iter().enumerate() {
        outln(format_args!("{}", if index < headings { Paint::Bold.over(line) } else { line }));
    }
}

/// Lines cut to the terminal's width: as with ps(1), on a terminal a row has one line.
pub fn cut(lines: Vec<String>) -> Vec<String> {
    let width = width().unwrap_or(usize::MAX);
    lines.into_iter().map(|line| line.chars().take(width).collect()).collect()
}

/// The rows of a table, its heading first.
pub fn headed<const N: usize>(
    heading: [&str; N],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> Vec<Vec<String>> {
    std::iter::once(heading.map(str::to_owned).into()).chain(rows).collect()
}

/// Lines of an aligned table: every column as wide as its widest cell; `right` names the columns
/// aligned to the right. Cells may be a stranger's words: what a terminal would obey is left out of
/// them.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> Vec<String> {
    let printable = |row: &Vec<String>| row.iter().map(|cell| topology::printable(cell)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(printable).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate().map(|(column, cell)| {
            // by hand: a format's width ends at 65,535, and a cell may be longer
            let room = " ".repeat(widths[column] - cell.chars().count());
            if right.contains(&column) { room + cell } else { format!("{cell}{room}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_short_numbers() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(12 << 20), "12.0 MiB");
        assert_eq!(bytes(u64::MAX), "16777216.0 TiB");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["a".into(), "1".into()], vec!["bcd".into(), "234".into(), "x".into()]];
        assert_eq!(table(&rows, &[1]), ["a      1", "bcd  234  x"]);
    }

    #[test]
    fn a_cell_may_be_longer_than_a_format_is_wide() {
        let long = "x".repeat(70_000);
        let rows = [vec!["a".into(), "b".into()], vec![long.clone(), "c".into()]];
        let lines = table(&rows, &[0]);
        assert_eq!(lines[0].len(), long.len() + "  b".len());
        assert_eq!(lines[1], long + "  c");
    }

    #[test]
    fn a_cell_does_not_steer_a_terminal() {
        let rows = [vec!["\u{1b}[2Ja\nb".into(), "\u{202e}c".into()]];
        assert_eq!(table(&rows, &[]), ["[2Jab  c"]);
    }
}
