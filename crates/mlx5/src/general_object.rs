//! General objects (PRM "General Object", `general_obj_in_cmd_hdr`): of all kinds that there are one is built, numbers of queue
//! pairs that are set aside (`MLX5_OBJ_TYPE_RESERVED_QPN`), which programs give to what the device knows nothing of.

use crate::bits::{Field, be32, put};
use crate::command::done;
use crate::function::Shared;
use crate::opcode::{Answer, Status};

const KIND: Field = Field::new(0x30, 16);
pub(crate) const NUMBER: Field = Field::new(0x40, 32);
const LOG_RANGE: Field = Field::new(0x63, 5);

const QP_NUMBERS: u64 = 0x2c;
/// Kinds, as the capability says them.
pub(crate) const KINDS: u64 = 1 << QP_NUMBERS;
/// Numbers that one object has, as a logarithm.
pub(crate) const LOG_QP_NUMBERS: u64 = 6;

/// `CREATE_GENERAL_OBJECT`.
pub(crate) fn create(shared: &Shared, input: &[u8]) -> Answer {
    if KIND.get(input) != QP_NUMBERS || LOG_RANGE.get(input) != LOG_QP_NUMBERS {
        return Err(Status::BadParameter);
    }
    let first = shared.hca.set_qp_numbers_aside(1 << LOG_QP_NUMBERS)?;
    shared.objects.qp_numbers.insert(first, ());
    let mut answer = vec![0; 8];
    put(&mut answer, 0, &first.to_be_bytes());
    Ok(answer)
}

/// `DESTROY_GENERAL_OBJECT`.
pub(crate) fn destroy(shared: &Shared, input: &[u8]) -> Answer {
    if KIND.get(input) != QP_NUMBERS {
        return Err(Status::BadParameter);
    }
    let first = be32(input, 8);
    shared.objects.qp_numbers.remove(first)?;
    shared.hca.give_qp_numbers_back(first, 1 << LOG_QP_NUMBERS);
    done()
}
