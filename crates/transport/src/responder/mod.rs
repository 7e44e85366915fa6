//! The responder: serves what a peer asks for, and answers it.
//!
//! [`serve`] takes the request packets of a reliable connection in their order, [`answered`] does
//! the operations that bring an answer back, and [`repeat`] answers what was asked before.
//! [`refuse`] and [`faults`] are what becomes of a request that cannot be done, and [`respond`]
//! emits what is owed. [`uc`], [`ud`] and [`raw`] are the unreliable services.

mod answered;
mod faults;
mod order;
mod raw;
mod refuse;
mod repeat;
mod respond;
mod serve;
mod uc;
mod ud;

use crate::Cx;
use crate::executor::Executor;
use crate::keys::KeyTable;
use crate::qp::Transport;
use crate::qp::responder::most_owed;
use crate::qp::response::{Answer, ReadAnswer, Response};
use crate::values::{EventType, QpState};
use wire::Psn;

impl Transport {
    /// The rights under which the packet at hand is served.
    pub(super) fn executor<'k>(&self, keys: &'k KeyTable) -> Executor<'k> {
        let queue = self.resp.queue.as_ref();
        let pd = queue.and_then(|queue| queue.pd_id()).unwrap_or(self.pd);
        let alarm = self.peer_alarm.clone();
        Executor { keys, pd, qpn: self.qpn, access: self.attr.access, alarm }
    }

    /// The first packet in RTR tells the program that its peer is there (IBA 11.6.3.2).
    pub(super) fn note_established(&mut self, cx: &mut Cx<'_>) {
        if self.state == QpState::Rtr && !self.resp.established {
            self.resp.established = true;
            cx.sink.event(EventType::CommEst);
        }
    }

    /// One more message is complete.
    pub(crate) fn message_done(&mut self) {
        self.resp.msn = (self.resp.msn + 1) & 0x00ff_ffff;
    }

    /// Owes an acknowledge up to `psn`.
    pub(crate) fn owe_ack(&mut self, psn: Psn) {
        let msn = self.resp.msn;
        if let Some(Response { psn: owed, msn: owed_msn, answer: Answer::Ack, .. }) =
            self.resp.responses.back_mut()
        {
            if psn.after(*owed) >= 0 {
                *owed = psn;
            }
            *owed_msn = msn;
            return;
        }
        self.owe(psn, Answer::Ack, false);
    }

    /// Owes the answer to a request seen before, other than a READ. It leaves before those to later
    /// requests.
    fn owe_again(&mut self, psn: Psn, answer: Answer, fresh: bool) {
        let msn = self.resp.msn;
        self.resp.responses.insert(Response { psn, msn, answer, fresh });
    }

    /// The same for a READ, for which there is room.
    fn owe_read_again(&mut self, read: ReadAnswer, fresh: bool) {
        self.resp.responses.insert_read(self.resp.msn, read, fresh);
    }

    /// Owes `answer`; false when the peer repeats itself so fast that it may well ask for that
    /// again.
    pub(crate) fn owe(&mut self, psn: Psn, answer: Answer, fresh: bool) -> bool {
        let limit = most_owed(self.attr.max_dest_rd_atomic.into());
        if answer.comes_again() && self.resp.responses.len() >= limit {
            return false;
        }
        let msn = self.resp.msn;
        self.resp.responses.push_back(Response { psn, msn, answer, fresh });
        true
    }

    /// Owes the answer of a READ, for which there is room.
    fn owe_read(&mut self, read: ReadAnswer, fresh: bool) {
        self.resp.responses.push_read(self.resp.msn, read, fresh);
    }
}
