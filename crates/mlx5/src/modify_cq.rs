//! `MODIFY_CQ` (PRM "MODIFY_CQ"): another size and place, or when events are told.

use crate::bits::Field;
use crate::command::done;
use crate::cq;
use crate::function::Shared;
use crate::moderation::{COUNT, PERIOD, PERIOD_MODE};
use crate::opcode::{Answer, Status};
use crate::user_memory::Places;

const OP_MOD: Field = Field::new(0x30, 16);
const SELECT: Field = Field::new(0x60, 32);
const MODIFY: u64 = 0;
/// Fields of the context that may change, by the bit that selects them (`MLX5_CQ_MODIFY_*`).
const MODERATION: [(u64, Field); 3] = [(1 << 0, PERIOD), (1 << 1, COUNT), (1 << 4, PERIOD_MODE)];
const RESIZE: u64 = 1;
/// Size, offset of the first page and size of pages, all of which it takes.
const RESIZE_ALL: u64 = 0b111;

pub(crate) fn modify(shared: &Shared, cqn: u32, input: &[u8]) -> Answer {
    let queue = shared.objects.cqs.get(cqn)?.front;
    let selected = SELECT.get(input);
    let known = MODERATION.iter().fold(0, |all, (bit, _)| all | bit);
    match OP_MOD.get(input) {
        MODIFY if selected & !known == 0 => {
            let context = input.get(cq::CONTEXT).ok_or(Status::BadInputLength)?;
            let fields = MODERATION.iter().filter(|(bit, _)| selected & bit != 0);
            queue.moderate(&fields.map(|(_, field)| *field).collect::<Vec<_>>(), context);
        }
        RESIZE if selected == RESIZE_ALL => queue.resize(&Places::new(shared), input)?,
        _ => return Err(Status::BadParameter),
    }
    done()
}
