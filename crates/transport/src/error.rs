//! Why a call on the HCA failed; each kind is one errno at the C ABI.

/// Result of an HCA call.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused call: the kind (one errno) and the reason in words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// An argument is wrong (EINVAL).
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// A queue or table is full, or a limit is exceeded (ENOMEM).
    #[error("no room: {0}")]
    NoMemory(&'static str),
    /// The device does not offer this (EOPNOTSUPP).
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// The object is still in use (EBUSY).
    #[error("busy: {0}")]
    Busy(&'static str),
    /// Access rights do not allow this (EACCES).
    #[error("access denied: {0}")]
    Access(&'static str),
    /// Address has no route (ENETUNREACH).
    #[error("unreachable: {0}")]
    Unreachable(&'static str),
    /// The device is gone, for instance after a fork (EIO).
    #[error("device lost: {0}")]
    Lost(&'static str),
    /// The system refused; the errno is passed on.
    #[error("{1}: errno {0}")]
    System(i32, &'static str),
}
