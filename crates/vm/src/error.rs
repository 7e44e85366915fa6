//! What stands in the way of a guest.

use std::io;
use std::path::Path;
use std::process::Command;

/// Result of this room's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no guest.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Something that this machine does not have, and how it gets it.
    #[error("{what} ({remedy})")]
    Missing {
        /// What is missing.
        what: String,
        /// What to do.
        remedy: String,
    },
    /// A program that failed.
    #[error("{command}: {said}")]
    Failed {
        /// The command, without options that every call has.
        command: String,
        /// What it said.
        said: String,
    },
    /// A file or program that could not be used.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, or with which file.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A guest that did not come up, or does not answer: with what it said last.
    #[error("{0}")]
    Guest(String),
}

impl Error {
    pub(crate) fn missing(what: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Missing { what: what.into(), remedy: remedy.into() }
    }
}

/// Names what an input or output error happened to.
pub(crate) trait At<T> {
    fn at(self, file: &Path) -> Result<T>;
    fn doing(self, what: &str) -> Result<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, file: &Path) -> Result<T> {
        self.map_err(|source| Error::Io { what: file.display().to_string(), source })
    }

    fn doing(self, what: &str) -> Result<T> {
        self.map_err(|source| Error::Io { what: what.to_owned(), source })
    }
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
