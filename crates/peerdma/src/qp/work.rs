//! Work requests as values.

use crate::memory::{LocalSlice, RemoteSlice};

bitflags::bitflags! {
    /// How a request is carried out (`enum ibv_send_flags`).
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SendFlags: u32 {
        /// Wait for this queue pair's earlier READs and atomics.
        const FENCE = 1;
        /// Raise a completion also on success. Failures always do.
        const SIGNALED = 1 << 1;
        /// Announce the message at the receiver even if it asked for solicited ones only.
        const SOLICITED = 1 << 2;
    }
}

impl Default for SendFlags {
    fn default() -> SendFlags {
        SendFlags::SIGNALED
    }
}

/// What a send request does.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Op<'a> {
    /// Sends a message into a receive of the peer, with immediate data or without.
    Send {
        /// Message, gathered.
        local: &'a [LocalSlice<'a>],
        /// Word delivered with the completion.
        imm: Option<u32>,
    },
    /// The same with bytes copied at posting; at most what the queue pair was built for.
    SendInline {
        /// Message.
        data: &'a [u8],
        /// Word delivered with the completion.
        imm: Option<u32>,
    },
    /// Writes to the peer's memory; with immediate data it consumes a receive there.
    Write {
        /// Source, gathered.
        local: &'a [LocalSlice<'a>],
        /// Destination, at least as long.
        remote: RemoteSlice,
        /// Word delivered to the peer.
        imm: Option<u32>,
    },
    /// The same with bytes copied at posting.
    WriteInline {
        /// Source.
        data: &'a [u8],
        /// Destination, at least as long.
        remote: RemoteSlice,
        /// Word delivered to the peer.
        imm: Option<u32>,
    },
    /// Reads the peer's memory.
    Read {
        /// Destination, scattered.
        local: &'a [LocalSlice<'a>],
        /// Source, at least as long.
        remote: RemoteSlice,
    },
    /// Stores `swap` if the peer's aligned 8 bytes equal `compare`; the old value arrives in
    /// `local`.
    CompareSwap {
        /// 8 bytes for the old value.
        local: LocalSlice<'a>,
        /// The word.
        remote: RemoteSlice,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds to the peer's aligned 8 bytes; the old value arrives in `local`.
    FetchAdd {
        /// 8 bytes for the old value.
        local: LocalSlice<'a>,
        /// The word.
        remote: RemoteSlice,
        /// Addend, wrapping.
        add: u64,
    },
}
