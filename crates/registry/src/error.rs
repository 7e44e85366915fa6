//! Why a call on the registry failed.

use rustix::io::Errno;

/// A refused or failed call: what happened, and what helps where something does.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// No process hosts a registry here, and an observer does not start one.
    #[error("no peerdma process of this user runs in this network namespace")]
    NoRegistry,
    /// The registry did not answer in time.
    #[error("the registry did not answer in time; is the process that hosts it stopped?")]
    Timeout,
    /// The RoCE port belongs to somebody else.
    #[error(
        "UDP port {port} is taken by {holder}; RoCEv2 has no other, and only programs of one user \
         share it: stop that program, or run in another network namespace (`peerdma run --net \
         private`, `ip netns exec`)"
    )]
    PortTaken {
        /// The port, 4791 in production.
        port: u16,
        /// What `/proc/net/udp` tells about the holder.
        holder: String,
    },
    /// The other end speaks another version of the protocol.
    #[error("the registry speaks protocol version {theirs}, this process {ours}")]
    Version {
        /// Version of this process.
        ours: u16,
        /// Version of the process that hosts the registry.
        theirs: u16,
    },
    /// No such slot, publication or claim.
    #[error("the registry knows no such entry")]
    Unknown,
    /// Somebody else holds this name.
    #[error("already taken by another process")]
    Taken,
    /// All slots are in use, or a table of the registry is full.
    #[error("the registry is full: {0}")]
    Full(String),
    /// An argument exceeds its length limit.
    #[error("{0} is too long")]
    TooLong(&'static str),
    /// This client was abandoned after a fork.
    #[error("this client was abandoned after a fork; connect again")]
    Abandoned,
    /// The other end broke the protocol.
    #[error("the registry's peer broke the protocol: {0}")]
    Protocol(String),
    /// The system refused.
    #[error("{what}: {}", std::io::Error::from_raw_os_error(*.errno))]
    System {
        /// What was attempted.
        what: String,
        /// The system's errno.
        errno: i32,
    },
}

impl Error {
    /// A system error with the attempt in words.
    pub(crate) fn system(what: &str, errno: Errno) -> Self {
        Error::System { what: what.to_owned(), errno: errno.raw_os_error() }
    }
}
