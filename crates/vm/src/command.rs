//! Programs of this machine, by which this room does its work: where one lies, and what it printed.

use crate::error::{At as _, Error, Result};
use std::path::PathBuf;
use std::process::Command;

/// A program of this machine by its name, as a shell finds it, and where system programs lie
/// besides.
///
/// # Errors
/// It is not installed.
pub fn find_program(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/sbin", "/usr/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| Error::missing(format!("{name} is not installed"), "install it"))
}

/// Runs a command that must succeed; what it prints.
pub(crate) fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().doing(&words(command))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let said = if said.is_empty() { output.status.to_string() } else { said };
    Err(Error::Failed { command: words(command), said })
}

/// As [`run`], where what it prints is text.
pub(crate) fn run_text(command: &mut Command) -> Result<String> {
    run(command).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// A command without the settings that every call of apt has.
fn words(command: &Command) -> String {
    let words = command.get_args().map(|word| word.to_string_lossy()).collect::<Vec<_>>();
    let words = words.iter().filter(|word| *word != "-o" && !word.contains("::"));
    let words = words.map(|word| word.as_ref()).collect::<Vec<_>>().join(" ");
    format!("{} {words}", command.get_program().to_string_lossy())
}
