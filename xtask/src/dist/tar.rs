//! Tar archives (the POSIX ustar format) of a package's files: the same bytes for the same files.
//! Folders come before what is in them; every owner is root, every time the one given.

use super::files::{Entry, Files};
use anyhow::{Context, Result};
use std::collections::BTreeSet;

/// Bytes of a header, and what the content of a file is padded to.
const BLOCK: usize = 512;
/// Bytes that an archive's size is a multiple of, as tar(1) makes it.
const RECORD: usize = 20 * BLOCK;

/// The archive, with `prefix` before each path: `./` for a Debian package, a folder's name for an
/// archive that people unpack.
///
/// # Errors
/// A path or a link is longer than the format's 100 bytes, or a file is larger than its 8 GiB.
pub fn archive(files: &Files, prefix: &str, time_s: u64) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let mut folders = BTreeSet::new();
    for (path, entry) in files.entries() {
        let path = format!("{prefix}{path}");
        for (end, _) in path.match_indices('/') {
            let folder = &path[..=end];
            if folders.insert(folder.to_owned()) {
                out.extend(header(folder, Kind::Folder, "", 0o755, 0, time_s)?);
            }
        }
        match entry {
            Entry::Link(target) => {
                out.extend(header(&path, Kind::Link, target, 0o777, 0, time_s)?);
            }
            Entry::File { content, executable } => {
                let mode = if *executable { 0o755 } else { 0o644 };
                out.extend(header(&path, Kind::File, "", mode, content.len() as u64, time_s)?);
                out.extend(content);
                out.resize(out.len().next_multiple_of(BLOCK), 0);
            }
        }
    }
    // Two empty blocks are the end.
    out.resize((out.len() + 2 * BLOCK).next_multiple_of(RECORD), 0);
    Ok(out)
}

/// What an entry is, as the format writes it.
#[derive(Clone, Copy)]
enum Kind {
    File = b'0' as isize,
    Link = b'2' as isize,
    Folder = b'5' as isize,
}

fn header(
    path: &str,
    kind: Kind,
    link: &str,
    mode: u64,
    size: u64,
    time_s: u64,
) -> Result<[u8; BLOCK]> {
    let mut block = [0; BLOCK];
    text(&mut block[..100], path)?;
    octal(&mut block[100..108], mode)?;
    octal(&mut block[108..116], 0)?;
    octal(&mut block[116..124], 0)?;
    octal(&mut block[124..136], size)?;
    octal(&mut block[136..148], time_s)?;
    block[156] = kind as u8;
    text(&mut block[157..257], link)?;
    text(&mut block[257..263], "ustar\0")?;
    text(&mut block[263..265], "00")?;
    text(&mut block[265..297], "root")?;
    text(&mut block[297..329], "root")?;
    // The sum counts its own field as spaces.
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    octal(&mut block[148..155], sum)?;
    Ok(block)
}

fn text(field: &mut [u8], value: &str) -> Result<()> {
    let room = field.len();
    let field = field.get_mut(..value.len());
    let field = field.with_context(|| format!("{value} is longer than tar's {room} bytes"))?;
    field.copy_from_slice(value.as_bytes());
    Ok(())
}

/// A number in octal digits, and a zero byte.
fn octal(field: &mut [u8], value: u64) -> Result<()> {
    let digits = field.len() - 1;
    let written = format!("{value:0digits$o}");
    anyhow::ensure!(written.len() == digits, "{value} has more than tar's {digits} octal digits");
    field[..digits].copy_from_slice(written.as_bytes());
    field[digits] = 0;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    fn some_files() -> Files {
        let mut files = Files::default();
        files.executable("bin/run", b"#!/bin/sh\n".to_vec());
        files.text("share/doc/page", vec![b'x'; 1025]);
        files
    }

    /// What tar(1) says of an archive.
    fn listed(archive: &[u8]) -> String {
        let mut tar = Command::new("tar");
        tar.args(["--utc", "--full-time", "-tvf", "-"]).env("LC_ALL", "C");
        let mut tar = tar.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        tar.stdin.take().unwrap().write_all(archive).unwrap();
        let output = tar.wait_with_output().unwrap();
        assert!(output.status.success(), "tar refuses the archive");
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n")
            .collect()
    }

    #[test]
    fn tar_finds_folders_before_files_and_one_owner_and_time() {
        let archive = archive(&some_files(), "top/", 86_400).unwrap();
        assert_eq!(archive.len() % RECORD, 0);
        let expected = "\
            drwxr-xr-x root/root 0 1970-01-02 00:00:00 top/\n\
            drwxr-xr-x root/root 0 1970-01-02 00:00:00 top/bin/\n\
            -rwxr-xr-x root/root 10 1970-01-02 00:00:00 top/bin/run\n\
            drwxr-xr-x root/root 0 1970-01-02 00:00:00 top/share/\n\
            drwxr-xr-x root/root 0 1970-01-02 00:00:00 top/share/doc/\n\
            -rw-r--r-- root/root 1025 1970-01-02 00:00:00 top/share/doc/page\n";
        assert_eq!(listed(&archive), expected);
    }

    #[test]
    fn what_the_format_cannot_hold_is_refused() {
        let mut files = Files::default();
        files.text(&"a".repeat(101), "");
        assert!(archive(&files, "", 0).unwrap_err().to_string().contains("longer than tar's 100"));
        assert!(archive(&some_files(), "", 1 << 33).is_err(), "a time of more digits");
    }

    #[test]
    fn the_same_files_are_the_same_bytes() {
        let once = archive(&some_files(), "./", 7).unwrap();
        assert_eq!(once, archive(&some_files(), "./", 7).unwrap());
        assert_ne!(once, archive(&some_files(), "./", 8).unwrap());
    }
}
