//! General objects (PRM "General Object", `general_obj_in_cmd_hdr`): of all kinds that there are
//! one is built, numbers of queue pairs that are set aside (`MLX5_OBJ_TYPE_RESERVED_QPN`), which
//! programs give to what the device knows nothing of.

use crate::layout::bits::{Field, put};
use crate::layout::head::{Answer, Status, done};
use crate::layout::limits::LOG_QP_NUMBERS;
use crate::object::shared::Shared;
use crate::request::user::GeneralObject;

/// The number in the answer that makes one.
pub(crate) const NUMBER: Field = Field::new(0x40, 32);

const QP_NUMBERS: u64 = 0x2c;
/// Kinds, as the capability says them.
pub(crate) const KINDS: u64 = 1 << QP_NUMBERS;

/// `CREATE_GENERAL_OBJECT`.
pub(crate) fn create(shared: &Shared, request: &GeneralObject) -> Answer {
    if request.obj_type != QP_NUMBERS || request.log_obj_range != LOG_QP_NUMBERS {
        return Err(Status::BadParameter);
    }
    let first = shared.hca.set_qp_numbers_aside(1 << LOG_QP_NUMBERS)?;
    shared.objects.qp_numbers.insert(first, ());
    let mut answer = vec![0; 8];
    put(&mut answer, 0, &first.to_be_bytes());
    Ok(answer)
}

/// `DESTROY_GENERAL_OBJECT`.
pub(crate) fn destroy(shared: &Shared, request: &GeneralObject) -> Answer {
    if request.obj_type != QP_NUMBERS {
        return Err(Status::BadParameter);
    }
    let first = request.obj_id;
    shared.objects.qp_numbers.remove(first)?;
    shared.hca.give_qp_numbers_back(first, 1 << LOG_QP_NUMBERS);
    done()
}
