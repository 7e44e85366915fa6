//! What a source may be at most. It comes from strangers, who may mean harm: everything that grows
//! with it has a bound here, and what of it reaches a terminal or a picture holds no character that
//! these obey.

use super::error::Error;
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Longest file that is taken as a source. The largest known has 1 MiB.
pub(crate) const LONGEST_SOURCE: u64 = 64 << 20;
/// Longest text: of lspci, XML, JSON or TOML. Its tree takes many times its length.
pub(crate) const LONGEST_TEXT: usize = 16 << 20;
/// Longest file in a tree: attributes are short, a library has some hundred KiB.
pub(crate) const LONGEST_FILE: u64 = 16 << 20;
/// Longest name, in characters.
const LONGEST_NAME: usize = 200;

/// A regular file's content.
///
/// # Errors
/// It cannot be read, is something that a reader may wait for or never see the end of, or is too
/// long.
pub(crate) fn read_file(path: &Path, longest: u64) -> Result<Vec<u8>, Error> {
    let bytes = read_start(path, longest + 1)?;
    if bytes.len() as u64 > longest {
        return Err(Error::TooLong(path.display().to_string(), longest));
    }
    Ok(bytes)
}

/// The first bytes of a regular file.
///
/// # Errors
/// It cannot be read, or is something that a reader may wait for.
pub(crate) fn read_start(path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    let failed = |error| Error::Read(path.to_owned(), error);
    let refused = || Error::NotRegular(path.to_owned());
    // Opening a device may do something, opening a FIFO waits.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(refused());
    }
    // It may have become a FIFO since.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let file = file.map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(refused());
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Text without what terminals and pictures obey: control characters, and those that turn the
/// direction of writing or show nothing.
pub fn printable(text: &str) -> String {
    // most text by far
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return text.to_owned();
    }
    let obeyed = |c: char| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
            || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}')
            || matches!(c, '\u{fff9}'..='\u{ffff}' | '\u{e0000}'..='\u{e007f}')
    };
    text.chars().filter(|&c| !obeyed(c)).collect()
}

/// The same of a name, no longer than names are.
pub(crate) fn clean(name: &str) -> String {
    printable(name).chars().take(LONGEST_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_terminals_obey_is_left_out() {
        assert_eq!(clean("a\u{1b}[2J\r\n\u{9b}31mb\u{202e}c\u{0}\u{7f}"), "a[2J31mbc");
        assert_eq!(clean("NVIDIA H100 80GB – ü"), "NVIDIA H100 80GB – ü");
        assert_eq!(clean(&"x".repeat(1 << 20)).len(), LONGEST_NAME);
    }

    #[test]
    fn only_regular_files_of_some_length_are_read() {
        for path in ["/dev/zero", "/dev/null", "/", "/dev/tty"] {
            assert!(read_file(Path::new(path), 10).is_err(), "{path}");
        }
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        assert!(matches!(read_file(&own, 10), Err(Error::TooLong(..))));
        assert!(read_file(&own, 1 << 20).is_ok());
    }
}
