//! `MODIFY_CQ` (PRM "MODIFY_CQ"): another size and place, or when events are raised.

use crate::layout::bits::Field;
use crate::layout::head::{Answer, Status, done};
use crate::layout::moderation::{COUNT, PERIOD, PERIOD_MODE};
use crate::object::shared::Shared;
use crate::request::cq::ModifyCq;

// Values of `op_mod`.
const MODIFY: u16 = 0;
/// Fields of the context that may change, by the bit that selects them (`MLX5_CQ_MODIFY_*`).
const MODERATION: [(u32, Field); 3] = [(1 << 0, PERIOD), (1 << 1, COUNT), (1 << 4, PERIOD_MODE)];
const RESIZE: u16 = 1;
/// Size, offset of the first page and size of pages, all of which it takes.
const RESIZE_ALL: u32 = 0b111;

pub(crate) fn modify(shared: &Shared, request: &ModifyCq) -> Answer {
    let queue = shared.objects.cqs.get(request.cqn)?.front;
    let selected = request.modify_field_select;
    let known = MODERATION.iter().fold(0, |all, (bit, _)| all | bit);
    match request.op_mod {
        MODIFY if selected & !known == 0 => {
            let context = request.context.as_ref().ok_or(Status::BadInputLength)?;
            let fields = MODERATION.iter().filter(|(bit, _)| selected & bit != 0);
            queue.moderate(&fields.map(|(_, field)| *field).collect::<Vec<_>>(), context);
        }
        RESIZE if selected == RESIZE_ALL => {
            queue.resize(&shared.queue_memory(), &request.entries)?
        }
        _ => return Err(Status::BadParameter),
    }
    done()
}
