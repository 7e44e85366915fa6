//! Compressors, as programs: what they write depends on their version and the input alone, so each
//! runs in one thread and is told no name and no time.

use anyhow::{Context, Result, ensure};
use std::io::Write as _;
use std::process::{Command, Stdio};

/// A program that compresses its standard input.
#[derive(Clone, Copy)]
pub enum Compressor {
    Gzip,
    Xz,
    Zstd,
}

impl Compressor {
    fn call(self) -> &'static [&'static str] {
        match self {
            Compressor::Gzip => &["gzip", "-9nc"],
            Compressor::Xz => &["xz", "-6", "--threads=1", "--stdout"],
            Compressor::Zstd => &["zstd", "-19", "--single-thread", "--quiet", "--stdout"],
        }
    }

    /// # Errors
    /// The program is missing or fails.
    pub fn compress(self, content: &[u8]) -> Result<Vec<u8>> {
        let call = self.call();
        let mut child = Command::new(call[0])
            .args(&call[1..])
            // Each reads options from a variable of its own.
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} (packages gzip, xz-utils, zstd)", call[0]))?;
        let mut input = child.stdin.take().context("a pipe")?;
        // What it writes may fill its pipe before it has read everything.
        let output = std::thread::scope(|scope| {
            scope.spawn(move || input.write_all(content));
            child.wait_with_output()
        })?;
        ensure!(output.status.success(), "{} failed ({})", call[0], output.status);
        Ok(output.stdout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_compressed_is_the_same_again() {
        let content: Vec<u8> = (0..1_000_000_u32).flat_map(|n| (n % 251).to_le_bytes()).collect();
        for (compressor, magic) in [
            (Compressor::Gzip, b"\x1f\x8b".as_slice()),
            (Compressor::Xz, b"\xfd7zXZ".as_slice()),
            (Compressor::Zstd, b"\x28\xb5\x2f\xfd".as_slice()),
        ] {
            if !test_support::has(compressor.call()[0]) {
                test_support::skip!("{} is not installed", compressor.call()[0]);
            }
            let once = compressor.compress(&content).unwrap();
            assert!(once.starts_with(magic) && once.len() < content.len() / 10);
            assert_eq!(once, compressor.compress(&content).unwrap());
        }
    }
}
