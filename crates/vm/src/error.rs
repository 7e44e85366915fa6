//! What stands in the way of a guest.

use std::io;
use std::path::Path;

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
    /// One that did not come up although its emulated processors have run for a good part of the
    /// time: this machine is too slow for it, or QEMU has led it astray.
    #[error("{0}")]
    GuestComputes(String),
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
