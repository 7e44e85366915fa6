//! Raw packets: a request is a whole Ethernet frame, without its check sequence, and so is what a
//! receive request gets.
//!
//! Sending is that of any unreliable service, receiving that of datagrams without a network header.

use crate::qp::Transport;
use crate::values::*;
use crate::{Counter, Cx};

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
