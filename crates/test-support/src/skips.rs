//! What distinguishes a skipped test from one that passed: a line in a file that the test
//! command names.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

/// Environment variable with the file that skipped tests are noted in.
pub const FILE: &str = "PEERDMA_SKIPS";

/// Notes that the calling test is skipped, or that a part of it is: it counts as skipped either
/// way. Called from the test's own thread, which bears its name.
///
/// # Panics
/// When the file cannot be written: the skip would count as a pass.
pub fn note_skip(reason: &str) {
    let thread = std::thread::current();
    let exe = std::env::current_exe().unwrap_or_default();
    let line = line(&exe, thread.name().unwrap_or("unnamed"), reason);
    eprintln!("skipped: {line}");
    if let Some(file) = std::env::var_os(FILE) {
        let opened = OpenOptions::new().append(true).create(true).open(&file);
        // One call, so that lines of programs that run at the same time stay whole.
        let written = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", Path::new(&file).display()));
    }
}

/// `PROGRAM::TEST: REASON` in one line; the program without the hash that Cargo gives it.
fn line(exe: &Path, test: &str, reason: &str) -> String {
    let stem = exe.file_stem().unwrap_or_default().to_string_lossy();
    let program = stem.rsplit_once('-').map_or(&*stem, |(name, _)| name);
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{program}::{test}: {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_one_line_that_names_program_and_test() {
        let exe = Path::new("/target/debug/deps/gpu_regions-0123456789abcdef");
        let said = line(exe, "moves::while_read", "no GPU:\n  not\there ");
        assert_eq!(said, "gpu_regions::moves::while_read: no GPU: not here");
    }
}
