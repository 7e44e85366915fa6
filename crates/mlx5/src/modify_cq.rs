//! `MODIFY_CQ` (PRM "MODIFY_CQ"): another size and place. Interrupts are not moderated; only
//! a network driver, which will not do without, may ask for it.

use crate::bits::Field;
use crate::command::done;
use crate::function::Shared;
use crate::opcode::{Answer, Status};
use crate::user_memory::Places;

const OP_MOD: Field = Field::new(0x30, 16);
const SELECT: Field = Field::new(0x60, 32);
const MODIFY: u64 = 0;
/// Period, count and what the period begins with.
const MODERATION: u64 = 1 << 0 | 1 << 1 | 1 << 4;
const RESIZE: u64 = 1;
/// Size, offset of the first page and size of pages, all of which it takes.
const RESIZE_ALL: u64 = 0b111;

pub(crate) fn modify(shared: &Shared, cqn: u32, input: &[u8]) -> Answer {
    let pair = shared.objects.cqs.get(cqn)?;
    // A network driver wants to be left alone for some time or some completions, which it may not count on.
    let moderation = OP_MOD.get(input) == MODIFY && SELECT.get(input) & !MODERATION == 0;
    if shared.hca.mac().is_some() && moderation {
        return done();
    }
    if OP_MOD.get(input) != RESIZE || SELECT.get(input) != RESIZE_ALL {
        return Err(Status::BadParameter);
    }
    pair.front.resize(&Places::new(shared), input)?;
    done()
}
