//! What arrives: receive requests of the program, and packets of the peer.

use crate::error::{Error, Result};
use crate::qp::response::{Answer, Response};
use crate::qp::{QUEUE_LOST, Transport, service};
use crate::sabotage::{self, Sabotage};
use crate::values::*;
use crate::{Counter, Cx, Rx};
use std::time::{Duration, Instant};
use wire::timer::local_ack_timeout;
use wire::{Opcode, Operation, Service};

/// Of a peer that waits so long an acknowledge may wait.
const PATIENT: Duration = Duration::from_millis(16);

impl Transport {
    /// Appends a receive request. In the error state it will be flushed.
    ///
    /// # Errors
    /// [`Error::Invalid`] in RESET, on a QP with a shared queue, or with too many entries;
    /// [`Error::NoMemory`] when the queue is full; [`Error::Lost`] when the memory that the program
    /// gave the queue is gone.
    pub fn post_recv(&mut self, wr: RecvWr) -> Result<()> {
        if self.state == QpState::Reset {
            return Err(Error::Invalid("the QP is in RESET"));
        }
        if !self.inbox.is_own() || matches!(self.kind, QpType::XrcSend | QpType::XrcRecv) {
            return Err(Error::Invalid("the QP has no receive queue of its own"));
        }
        if wr.scatter.len() > self.attr.cap.max_recv_sge as usize {
            return Err(Error::Invalid("more scatter entries than the QP allows"));
        }
        if self.inbox.len() >= self.attr.cap.max_recv_wr as usize {
            return Err(Error::NoMemory("the receive queue is full"));
        }
        self.inbox.post(wr).map_err(|_| QUEUE_LOST)
    }

    /// One packet. Acknowledges wait for [`Transport::end_of_batch`], requests for
    /// [`Transport::transmit`].
    pub fn receive(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        self.unfold_at(cx.now);
        self.now = Some(cx.now);
        let bth = &rx.headers.bth;
        let listening =
            matches!(self.state, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe);
        // Membership differs in the high bit; being full members ourselves we may talk to either
        // kind (IBA 10.9.3).
        let partition =
            (bth.pkey ^ wire::DEFAULT_PKEY) & 0x7fff == 0 || sabotage::on(Sabotage::SkipPkey);
        let notifies = bth.opcode.service == Service::Notification && self.kind.is_connected();
        let fits = notifies || Some(bth.opcode.service) == service(self.kind);
        if !listening || !partition || !fits {
            return cx.counters.count(Counter::RxDropped, 1);
        }
        if notifies {
            return self.congestion_notified(cx);
        }
        if let Some(packet) = rx.in_transit.filter(|_| !self.places(bth.opcode)) {
            return packet.whole(&mut |payload| {
                self.receive(&Rx { payload, in_transit: None, ..*rx }, cx);
            });
        }
        self.note_mark(rx, cx);
        if !bth.opcode.is_response() {
            self.resp.mtu = rx.mtu.unwrap_or_else(|| self.path_mtu());
        }
        match (self.kind, bth.opcode.is_response()) {
            (QpType::Rc | QpType::XrcSend, true) => self.answer(rx, cx),
            (QpType::Rc | QpType::XrcRecv, false) => self.serve(rx, cx),
            (QpType::Uc, _) => self.serve_unreliable(rx, cx),
            (QpType::Ud, _) => self.receive_datagram(rx, cx),
            (QpType::XrcSend, false) | (QpType::XrcRecv, true) | (QpType::RawPacket, _) => {
                cx.counters.count(Counter::RxDropped, 1);
            }
        }
    }

    /// Whether the payload of such a packet goes to its place without anybody's looking at it.
    fn places(&self, opcode: Opcode) -> bool {
        match opcode.operation {
            // A list of tags looks.
            Operation::Send => self.kind != QpType::Ud && self.inbox.tags().is_none(),
            Operation::Write | Operation::ReadResponse => true,
            _ => false,
        }
    }

    /// Ends a burst of received packets: emits acknowledges and responses.
    pub fn end_of_batch(&mut self, cx: &mut Cx<'_>) {
        self.unfold_at(cx.now);
        self.now = Some(cx.now);
        self.respond(cx);
        self.stop_if_alarmed();
        self.check_drained(cx);
        self.tally(cx);
    }

    /// A burst of received packets has ended; to be called before [`Transport::transmit`]. Where
    /// the program answers messages at once, the acknowledge of this one waits for the answer,
    /// until [`Transport::deadline`] at most, and leaves in its train: then it answers `true`, and
    /// whoever looks for packets next calls [`Transport::end_of_batch`].
    pub fn burst_ended(&mut self, now: Instant) -> bool {
        let is_message = self.owes_only_an_ack() && self.resp.message.is_none();
        let is_plain = self.kind == QpType::Rc && self.state == QpState::Rts;
        if !is_message || !is_plain || !self.peer_is_patient() {
            return false;
        }
        self.resp.replies.came(now)
    }

    /// Whether the peer, whose ACK timeout nobody knows here but is most often the same, bears a
    /// wait of some milliseconds.
    fn peer_is_patient(&self) -> bool {
        local_ack_timeout(self.attr.timeout).is_none_or(|wait| wait >= PATIENT)
    }

    /// Whether an acknowledge still waits for the program's answer, and nothing behind it.
    pub(crate) fn ack_waits(&self, now: Instant) -> bool {
        self.owes_only_an_ack() && self.resp.replies.waits_until().is_some_and(|until| now < until)
    }

    /// Whether an acknowledge waits for the program's answer.
    pub fn has_waiting_ack(&self) -> bool {
        self.resp.replies.has_waiting()
    }

    /// Ends a burst of received packets for now: what [`Transport::end_of_batch`] and
    /// [`Transport::transmit`] would do waits for [`Transport::timer`], which is due at once.
    pub fn put_off(&mut self, now: Instant) {
        self.unfold_at(now);
        self.now = Some(now);
        self.more = true;
    }

    /// Whether all that [`Transport::end_of_batch`] has to emit is one acknowledge of success. What
    /// leaves after it may overtake it: every later answer says what it says.
    pub fn owes_only_an_ack(&self) -> bool {
        matches!(self.resp.responses.front(), Some(Response { answer: Answer::Ack, .. }))
            && self.resp.responses.len() == 1
    }

    /// Whether [`Transport::end_of_batch`] has something to emit.
    pub fn has_ack_pending(&self) -> bool {
        !self.resp.responses.is_empty()
    }
}
