//! Why a call failed, and what to do about it.

use std::path::PathBuf;

/// Result of a call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A refused call. [`Error::remedy`] says what usually helps.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The library could not be loaded.
    #[error("cannot load {}: {reason}", path.display())]
    Load {
        /// What was to be loaded.
        path: PathBuf,
        /// The dynamic linker's words.
        reason: String,
    },
    /// The loaded library is not a libibverbs of a version this crate can use.
    #[error("{} has no function {symbol}", path.display())]
    Symbol {
        /// The library.
        path: PathBuf,
        /// The function that is missing.
        symbol: &'static str,
    },
    /// No device, or none of that name.
    #[error(
        "no RDMA device {}(present: {})",
        wanted.as_ref().map(|name| format!("named {name} ")).unwrap_or_default(),
        if present.is_empty() { "none".to_owned() } else { present.join(", ") }
    )]
    NoDevice {
        /// The name asked for; `None` for any.
        wanted: Option<String>,
        /// The devices there are.
        present: Vec<String>,
    },
    /// The port has no address to be reached at.
    #[error("port {port} has no GID: no network interface with an address is up")]
    NoGid {
        /// The port, counted from 1.
        port: u8,
    },
    /// A verb failed; the errno is that of its manual page.
    #[error("{call}: {source}")]
    Call {
        /// The verb.
        call: &'static str,
        /// The errno.
        source: std::io::Error,
    },
    /// A range leaves the memory it is taken from, or is longer than one message can be.
    #[error(
        "bytes {offset}..{} lie outside the {size} bytes there are",
        offset.saturating_add(*len)
    )]
    Range {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Bytes there are.
        size: u64,
    },
    /// The library or the device does not offer what was asked for.
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// An argument is wrong.
    #[error("invalid argument: {0}")]
    Argument(&'static str),
    /// Text that is no [`Endpoint`](crate::Endpoint).
    #[error("not an endpoint: {0:?}")]
    Endpoint(String),
    /// A work request failed.
    #[error(transparent)]
    Completion(#[from] crate::CompletionError),
}

impl Error {
    /// The error of `call` from the calling thread's errno.
    pub(crate) fn last(call: &'static str) -> Error {
        Error::Call { call, source: std::io::Error::last_os_error() }
    }

    /// The errno, where there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Call { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }

    /// What usually helps.
    pub fn remedy(&self) -> &'static str {
        match self {
            Error::Load { .. } => {
                "install libibverbs (Debian: libibverbs1), or start the program under `peerdma run`"
            }
            Error::Symbol { .. } => "use libibverbs of rdma-core 34 or newer, or `peerdma run`",
            Error::NoDevice { .. } => {
                "start the program under `peerdma run`, or load the driver of the NIC \
                 (`ibv_devices` lists what is there)"
            }
            Error::Call { call, source } => match (source.raw_os_error(), *call) {
                (Some(libc::ENOMEM), "ibv_reg_mr") => {
                    "raise the limit of locked memory (`ulimit -l`), or register less"
                }
                (Some(libc::EFAULT), "ibv_reg_mr") => "register memory that is mapped and writable",
                (Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT), "ibv_reg_dmabuf_mr") => {
                    "this device or its driver takes no dma-buf: use another device, or go through \
                     host memory"
                }
                (Some(libc::EBADF), "ibv_reg_dmabuf_mr" | "ibv_reg_mr_fd" | "ibv_rereg_mr_fd") => {
                    "pass an open dma-buf descriptor"
                }
                (Some(libc::EINVAL), "ibv_reg_dmabuf_mr" | "ibv_reg_mr_fd" | "ibv_rereg_mr_fd") => {
                    "the descriptor must be a dma-buf that holds offset + length bytes, and offset \
                     and iova must agree within a page"
                }
                (Some(libc::EBUSY), "ibv_reg_dmabuf_mr" | "ibv_reg_mr_fd" | "ibv_rereg_mr_fd") => {
                    "the device cannot reach that memory over PCIe: PEERDMA_LOG=1 tells why"
                }
                (Some(libc::EADDRINUSE), "ibv_open_device") => {
                    "another user's process holds the RoCE port (UDP 4791) here: end it, or use a \
                     network namespace of your own (`unshare -rn`, and in it `ip link set lo up`)"
                }
                (Some(libc::ENOMEM), "ibv_post_send" | "ibv_post_recv") => {
                    "the queue is full: poll completions first, or build the queue pair with a \
                     longer queue"
                }
                (Some(libc::ENOMEM), _) => {
                    "ask for less; the device's limits are in Context::device_attr"
                }
                (Some(libc::EPERM), "peerdma_migrate_to_gpu") => {
                    "run it as root, or set vm.unprivileged_userfaultfd=1"
                }
                (Some(libc::EPERM | libc::EACCES), _) => {
                    "the user needs access to /dev/infiniband/uverbs*"
                }
                (Some(libc::ETIMEDOUT | libc::ENETUNREACH | libc::EHOSTUNREACH), _) => {
                    "check that the peer's address answers on this interface"
                }
                _ => "see the manual page of the call",
            },
            Error::NoGid { .. } => {
                "bring an interface up (`ip link set lo up` serves processes of one host)"
            }
            Error::Range { .. } => "take a range inside the memory and at most 4 GiB long",
            Error::NotSupported(_) => "use a newer libibverbs or another device",
            Error::Argument(_) => "see the documentation of the function",
            Error::Endpoint(_) => "pass the text that the peer's Endpoint prints",
            Error::Completion(error) => error.status.remedy(),
        }
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        match error {
            Error::Call { call, source } => {
                std::io::Error::new(source.kind(), format!("{call}: {source}"))
            }
            other => std::io::Error::other(other),
        }
    }
}

/// Turns the return value of a verb (0, an errno, or -1 with errno) into a result.
pub(crate) fn check(call: &'static str, value: libc::c_int) -> Result<()> {
    match value {
        0 => Ok(()),
        1.. => Err(Error::Call { call, source: std::io::Error::from_raw_os_error(value) }),
        _ => Err(Error::last(call)),
    }
}
