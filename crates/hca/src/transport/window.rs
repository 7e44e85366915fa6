//! How much a requester may have in flight.
//!
//! RoCE assumes a fabric that loses nothing; sockets with a small buffer do. The window counts what a packet costs the
//! receiver's socket buffer, not its payload only, starts at a share of the limit, grows while acknowledges come and
//! is halved by loss.

/// What a packet costs beyond its payload: headers and the kernel's bookkeeping for one datagram.
pub(super) const PACKET_COST: u64 = 512;
/// Where an untried window starts, if the limit allows.
const START: u64 = 128 << 10;
/// Packets that always fit.
const LEAST_PACKETS: u64 = 4;

/// Bytes that may be in flight.
#[derive(Debug)]
pub(super) struct Window {
    limit: u64,
    size: u64,
    /// Below it the window doubles per round trip, above it grows by a packet.
    threshold: u64,
    packet: u64,
}

impl Window {
    /// A window of at most `limit` bytes over packets of `mtu` bytes of payload.
    pub(super) fn new(limit: u64, mtu: u32) -> Window {
        let packet = u64::from(mtu) + PACKET_COST;
        let limit = limit.max(LEAST_PACKETS * packet);
        Window {
            limit,
            size: limit.min(START.max(LEAST_PACKETS * packet)),
            threshold: limit,
            packet,
        }
    }

    /// Present size in bytes.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// `bytes` left the flight by an acknowledge.
    pub(super) fn acknowledged(&mut self, bytes: u64) {
        let growth =
            if self.size < self.threshold { bytes } else { self.packet * bytes / self.size };
        self.size = (self.size + growth).min(self.limit);
    }

    /// Something in flight was lost.
    pub(super) fn lost(&mut self) {
        self.size = (self.size / 2).max(LEAST_PACKETS * self.packet);
        self.threshold = self.size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_limit_and_is_halved_by_loss() {
        let mut window = Window::new(1 << 20, 1024);
        assert_eq!(window.size(), START);
        for _ in 0..16 {
            window.acknowledged(window.size());
        }
        assert_eq!(window.size(), 1 << 20);
        window.lost();
        assert_eq!(window.size(), 1 << 19);
        let before = window.size();
        window.acknowledged(before);
        assert_eq!(window.size(), before + 1024 + PACKET_COST);
        for _ in 0..64 {
            window.lost();
        }
        assert_eq!(window.size(), LEAST_PACKETS * (1024 + PACKET_COST));
    }

    #[test]
    fn a_tiny_limit_still_lets_packets_pass() {
        assert_eq!(Window::new(0, 4096).size(), LEAST_PACKETS * (4096 + PACKET_COST));
    }
}
