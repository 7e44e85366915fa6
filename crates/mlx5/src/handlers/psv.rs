//! Commands that make and end protection signature values (`create_psv_in`).

use crate::layout::bits::Field;
use crate::layout::head::{Answer, Status, done};
use crate::object::pools::Pools;
use crate::object::shared::Shared;
use crate::request::memory::CreatePsv;

/// In the answer: the first of up to four numbers, one every 32 bits.
pub(crate) const NUMBER: Field = Field::new(0x88, 24);
const MOST: u8 = 4;

/// `CREATE_PSV`.
pub(crate) fn create(pools: &mut Pools, shared: &Shared, request: &CreatePsv) -> Answer {
    let pd = shared.objects.pds.get(request.pd)?.id();
    let count = request.num_psv;
    if !(1..=MOST).contains(&count) {
        return Err(Status::BadParameter);
    }
    let mut answer = vec![0; 0x100 / 8 - 8];
    let mut made = Vec::new();
    for step in 0..usize::from(count) {
        match pools.psvs.take() {
            Ok(number) => made.push(number),
            Err(status) => {
                for number in made {
                    pools.psvs.give_back(number)?;
                }
                return Err(status);
            }
        }
        NUMBER.at(step * 32).before_head().set(&mut answer, made[step].into());
    }
    for number in made {
        shared.objects.psvs.insert(number, pd);
    }
    Ok(answer)
}

/// `DESTROY_PSV`.
pub(crate) fn destroy(pools: &mut Pools, shared: &Shared, number: u32) -> Answer {
    shared.objects.psvs.remove(number)?;
    pools.psvs.give_back(number)?;
    done()
}
