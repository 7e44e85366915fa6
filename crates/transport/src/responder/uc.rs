//! The responder of an unreliable connection (IBA 9.8.2.2): what is not whole is dropped without a
//! word.
//!
//! A missing packet spoils its message; the next FIRST or ONLY packet begins anew. A receive
//! request that a spoilt SEND had consumed serves the next message.

use super::order::{check_order, check_packet};
use crate::executor::Refusal;
use crate::qp::Transport;
use crate::qp::responder::{Incoming, Write, abandon};
use crate::values::*;
use crate::{Counter, Cx, Rx};
use wire::Operation;

impl Transport {
    /// A request packet of an unreliable connection.
    pub(crate) fn serve_unreliable(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) {
        self.note_established(cx);
        let bth = &rx.headers.bth;
        let in_order = bth.psn == self.resp.expected;
        self.resp.expected = bth.psn.plus(1);
        if !in_order {
            cx.counters.count(Counter::OutOfSequence, 1);
        }
        if !in_order || bth.opcode.position.starts() {
            abandon(&mut self.resp.message, &mut self.inbox);
        }
        let outcome = match check_order(self.resp.message.as_ref(), bth.opcode)
            .and_then(|()| check_packet(bth.opcode, rx.payload_len(), self.resp.mtu))
        {
            Err(refusal) => Err(refusal),
            Ok(()) => match bth.opcode.operation {
                Operation::Send => self.receive_send(rx, cx),
                Operation::Write => self.receive_write(rx, cx),
                _ => Err(Refusal::InvalidRequest("not an operation of this service")),
            },
        };
        match outcome {
            Ok(()) => {}
            Err(Refusal::ReceiveProtection) => {
                if let Some(Incoming::Send(landing)) = self.resp.message.take() {
                    self.fail_receive(landing, WcStatus::LocProtErr, cx);
                }
                self.enter_error(cx);
            }
            Err(Refusal::QueueLost(_)) => self.fail(cx),
            Err(Refusal::PageFault(error)) => self.message_faulted(error, rx, cx),
            Err(refusal) => {
                let counter = match refusal {
                    Refusal::NotReady => Counter::OutOfBuffer,
                    Refusal::RemoteAccess(_) => Counter::RespRemoteAccessErrors,
                    Refusal::ReceiveTooShort => Counter::RespLocalLengthError,
                    _ => Counter::RxDropped,
                };
                cx.counters.count(counter, 1);
                abandon(&mut self.resp.message, &mut self.inbox);
            }
        }
    }

    fn receive_send(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let mut landing = match self.resp.message.take() {
            Some(Incoming::Send(landing)) => landing,
            _ => {
                let mut landing = self.inbox.take(self.pd)?;
                landing.watch(self.peer_alarm.as_ref());
                landing
            }
        };
        let outcome = landing.append(cx.keys, rx.arriving());
        if outcome.is_err() || !rx.headers.bth.opcode.position.ends() {
            self.resp.message = Some(Incoming::Send(landing));
            return outcome;
        }
        let byte_len = landing.filled() as u32;
        let done = self.received(landing.wr_id(), WcStatus::Success, WcOpcode::Recv, byte_len, rx);
        cx.sink.received(done);
        Ok(())
    }

    fn receive_write(&mut self, rx: &Rx<'_>, cx: &mut Cx<'_>) -> Result<(), Refusal> {
        let position = rx.headers.bth.opcode.position;
        let mut write = match self.resp.message.take() {
            Some(Incoming::Write(mut write)) => {
                write.renew(&self.executor(cx.keys))?;
                write
            }
            _ => {
                cx.counters.count(Counter::RxWriteRequests, 1);
                Write::begin(self.executor(cx.keys), rx.headers.reth, position, self.resp.mtu)?
            }
        };
        write.check(rx.payload_len(), position.ends())?;
        let placed = write.place(rx.arriving());
        if placed.is_err() {
            self.resp.message = Some(Incoming::Write(write));
            return placed;
        }
        if !position.ends() {
            self.resp.message = Some(Incoming::Write(write));
        } else if rx.headers.imm.is_some() {
            let landing = self.inbox.take(self.pd)?;
            let opcode = WcOpcode::RecvRdmaWithImm;
            let done = self.received(landing.wr_id(), WcStatus::Success, opcode, write.len, rx);
            cx.sink.received(done);
        }
        Ok(())
    }
}
