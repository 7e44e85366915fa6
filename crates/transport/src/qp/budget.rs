//! How much one call may send before others get their turn.
//!
//! The transport reads no clock, so whoever calls it says in packets, bytes and requests what it
//! may do. What is left over then is noted ([`Transport::deadline`](super::Transport::deadline) is
//! past), and waits for the next call.

/// What may be sent for one purpose.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    packets: u32,
    bytes: u64,
}

impl Share {
    /// At most `packets` packets, and no more once they carry `bytes` bytes of payload.
    pub const fn new(packets: u32, bytes: u64) -> Share {
        Share { packets, bytes }
    }

    /// Whether nothing more may go in this call.
    pub fn is_spent(&self) -> bool {
        self.packets == 0 || self.bytes == 0
    }

    /// Takes off one packet with `bytes` bytes of payload, or work that costs as much.
    pub(crate) fn spend(&mut self, bytes: u64) {
        self.packets = self.packets.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

/// What one call may do. Answers and requests have shares of their own: a peer's long READ must not
/// keep the queue pair's own requests from leaving, nor the other way round.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    pub(crate) responses: Share,
    pub(crate) requests: Share,
    endings: u32,
}

impl Budget {
    /// The same share for answers and for requests; as many requests may end as packets go.
    pub const fn of(share: Share) -> Budget {
        Budget { responses: share, requests: share, endings: share.packets }
    }

    /// The same budget, but `endings` requests may end: be completed by one acknowledge, or
    /// flushed.
    pub const fn ending(self, endings: u32) -> Budget {
        Budget { endings, ..self }
    }

    /// How many requests may still end.
    pub fn endings(&self) -> u32 {
        self.endings
    }

    /// Takes off one request that ended.
    pub(crate) fn spend_ending(&mut self) {
        self.endings = self.endings.saturating_sub(1);
    }
}
