//! Raw packets: a request is a whole Ethernet frame, without its check sequence, and so is what a receive request gets.
//!
//! Sending is that of any unreliable service, receiving that of datagrams without a network header.

use super::Transport;
use crate::error::{Error, Result};
use crate::values::*;
use crate::{Counter, Cx};
use wire::frame::ETHERNET_LEN;

/// Longest frame in bytes. What an interface carries is less; longer ones are lost on the way, as on a NIC.
pub const MAX_FRAME: u32 = 1 << 16;

/// Whether a request of `length` bytes is a frame.
pub(super) fn check_frame(length: u64) -> Result<()> {
    if length < ETHERNET_LEN as u64 {
        return Err(Error::Invalid("a raw packet begins with an Ethernet header"));
    }
    if length > MAX_FRAME.into() {
        return Err(Error::Invalid("a raw packet is longer than any frame"));
    }
    Ok(())
}

impl Transport {
    /// A frame that steering chose the QP for.
    pub fn receive_frame(&mut self, frame: &[u8], cx: &mut Cx<'_>) {
        self.now = Some(cx.now);
        use QpState::{Rtr, Rts, Sqd, Sqe};
        if self.kind != QpType::RawPacket || !matches!(self.state, Rtr | Rts | Sqd | Sqe) {
            return cx.counters.count(Counter::RxDropped, 1);
        }
        let Some(landing) = self.land(&[frame], cx) else { return };
        cx.sink.received(Completion {
            byte_len: landing.filled() as u32,
            ..Completion::new(landing.wr_id(), WcStatus::Success, WcOpcode::Recv, self.qpn)
        });
    }
}
