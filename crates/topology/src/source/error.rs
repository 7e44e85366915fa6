//! Why a source could not be read as a machine.

use std::path::PathBuf;

/// Why a source could not be read as a machine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be opened or read.
    #[error("cannot read {path}: {error}", path = .0.display(), error = .1)]
    Read(PathBuf, std::io::Error),
    /// A FIFO, a device, a socket: reading may wait for ever or never end.
    #[error("{path}: neither a regular file nor a folder", path = .0.display())]
    NotRegular(PathBuf),
    /// Longer than any description of a machine.
    #[error("{0}: longer than {mib} MiB, which no description of a machine is", mib = .1 >> 20)]
    TooLong(String, u64),
    /// A folder that shows no machine.
    #[error("{path}: there is no /sys in it", path = .0.display())]
    NoSys(PathBuf),
    /// A capture cannot be written.
    #[error("cannot write the capture: {0}")]
    Write(std::io::Error),
    /// A capture can only be made of a file tree.
    #[error(
        "{path}: only a folder or archive with /sys in it shows enough for this",
        path = .0.display()
    )]
    NoTree(PathBuf),
    /// It is none of the formats.
    #[error(
        "{0}: not a format that is read here (a folder or tar with /sys in it, lspci -vvv or -tv, \
         NCCL or hwloc XML, an rdma_topo dump, a platform file)"
    )]
    UnknownFormat(String),
    /// It is of a known format and broken.
    #[error("{format}: {reason}")]
    Malformed {
        /// What it was taken for.
        format: &'static str,
        /// What is wrong, and where.
        reason: String,
    },
    /// The functions form no tree.
    #[error("{0}: {1}")]
    Tree(&'static str, pcie::TreeError),
    /// A platform file is wrong.
    #[error(transparent)]
    Platform(#[from] pcie::PlatformError),
}

impl Error {
    /// A broken file of a known format.
    pub(crate) fn malformed(format: &'static str, reason: impl ToString) -> Error {
        Error::Malformed { format, reason: reason.to_string() }
    }
}
