//! The end of the device, or of the memory that a program gave its queues.

use crate::Cx;
use crate::qp::Transport;
use crate::qp::response::Answer;
use crate::values::{QpState, QpType};
use std::collections::VecDeque;
use wire::{NakCode, Syndrome};

impl Transport {
    /// The device can do nothing more: a peer whose request comes next, or is under way, gets a NAK
    /// that says so, and all requests are flushed. No event but the device's own is raised.
    pub fn end_with_device(&mut self, cx: &mut Cx<'_>) {
        self.unfold_at(cx.now);
        if matches!(self.state, QpState::Reset | QpState::Err) {
            return;
        }
        self.now = Some(cx.now);
        // There is no other turn.
        cx.budget = cx.budget.ending(u32::MAX);
        self.resp.responses.clear();
        if matches!(self.kind, QpType::Rc | QpType::XrcRecv) && self.state != QpState::Init {
            let nak = Syndrome::Nak(NakCode::RemoteOperational);
            self.owe(self.resp.expected, Answer::Nak(nak), false);
        }
        self.stop();
        self.flush(cx);
        self.respond(cx);
    }

    /// Forgets all requests and the memory they are in, before whoever provided it takes it back.
    pub fn leave_memory(&mut self) {
        self.unfold();
        self.send_slots = None;
        self.req.queue = VecDeque::new();
        self.inbox.leave_memory();
    }
}
