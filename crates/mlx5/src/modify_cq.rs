//! `MODIFY_CQ` (PRM "MODIFY_CQ"): another size and place. Interrupts are not moderated, and the driver is told so.

use crate::bits::Field;
use crate::command::done;
use crate::function::Shared;
use crate::opcode::{Answer, Status};

const OP_MOD: Field = Field::new(0x30, 16);
const SELECT: Field = Field::new(0x60, 32);
const RESIZE: u64 = 1;
/// Size, offset of the first page and size of pages, all of which it takes.
const RESIZE_ALL: u64 = 0b111;

pub(crate) fn modify(shared: &Shared, cqn: u32, input: &[u8]) -> Answer {
    let pair = shared.objects.cqs.get(cqn)?;
    if OP_MOD.get(input) != RESIZE || SELECT.get(input) != RESIZE_ALL {
        return Err(Status::BadParameter);
    }
    pair.front.resize(&*shared.bus, input)?;
    done()
}
