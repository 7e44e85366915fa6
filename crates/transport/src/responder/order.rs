//! Which packet may follow which within a message, and how long each may be.

use crate::executor::Refusal;
use crate::qp::responder::Incoming;
use crate::sabotage::{self, Sabotage};
use wire::{Opcode, Operation, Position};

/// Checks what each position of a message allows (IBA 9.7.4.1.2, 9.7.4.1.3).
pub(super) fn check_packet(opcode: Opcode, payload: usize, mtu: u32) -> Result<(), Refusal> {
    let mtu = mtu as usize;
    let fits = match opcode.operation {
        Operation::Send | Operation::Write => match opcode.position {
            Position::First | Position::Middle => payload == mtu,
            Position::Last => (1..=mtu).contains(&payload),
            Position::Only => payload <= mtu,
        },
        Operation::AtomicWrite => payload == 8,
        _ => payload == 0,
    };
    if fits || sabotage::on(Sabotage::SkipLengthCheck) {
        Ok(())
    } else {
        Err(Refusal::InvalidRequest("payload does not fit the packet's place in its message"))
    }
}

/// Checks that `opcode` may follow what has begun (IBA 9.7.4.1.1).
pub(super) fn check_order(message: Option<&Incoming>, opcode: Opcode) -> Result<(), Refusal> {
    let continues = match (message, opcode.operation) {
        (None, _) => None,
        (Some(Incoming::Send(_)), Operation::Send) => Some(true),
        (Some(Incoming::Write(_)), Operation::Write) => Some(true),
        (Some(_), _) => Some(false),
    };
    match (continues, opcode.position.starts()) {
        (None, true) | (Some(true), false) => Ok(()),
        _ => Err(Refusal::InvalidRequest("packet out of order within its message")),
    }
}
