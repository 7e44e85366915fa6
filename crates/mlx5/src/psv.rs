//! Protection signature values (PRM "PSV"; `create_psv_in`, `struct mlx5_seg_set_psv`): what a transfer with block signatures
//! begins with. Each is an object of a protection domain, and a request sets it.
//!
//! Here a key's signatures are calculated from its first block on at every access, with the values that the key's own description
//! has, which a driver sets a PSV to as well. So a PSV is kept, and checked when it is named; nothing is carried over in it.

use crate::bits::{Field, be32};
use crate::command::{Commands, done};
use crate::function::Shared;
use crate::opcode::{Answer, Status};
use hca::PdId;
use std::ops::Range;

pub(crate) const COUNT: Field = Field::new(0x40, 4);
pub(crate) const PD: Field = Field::new(0x48, 24);
/// In the answer: the first of up to four numbers, one every 32 bits.
pub(crate) const NUMBER: Field = Field::new(0x88, 24);
const MOST: u64 = 4;
/// Numbers of PSVs.
pub(crate) const ALL: Range<u32> = 1..1 << 16;

/// The opcode of a request that sets one.
pub(crate) const SET: u8 = 0x20;

/// `CREATE_PSV`.
pub(crate) fn create(commands: &mut Commands, shared: &Shared, input: &[u8]) -> Answer {
    let pd = shared.objects.pds.get(PD.get32(input))?.id();
    let count = COUNT.get(input);
    if !(1..=MOST).contains(&count) {
        return Err(Status::BadParameter);
    }
    let mut answer = vec![0; 0x100 / 8 - 8];
    let mut made = Vec::new();
    for step in 0..count as usize {
        match commands.psvs.take() {
            Ok(number) => made.push(number),
            Err(status) => {
                for number in made {
                    commands.psvs.give_back(number)?;
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
pub(crate) fn destroy(commands: &mut Commands, shared: &Shared, number: u32) -> Answer {
    shared.objects.psvs.remove(number)?;
    commands.psvs.give_back(number)?;
    done()
}

/// The PSV that a request names in its segment behind the control segment; `None` if that is cut off.
pub(crate) fn named(entry: &[u8]) -> Option<u32> {
    entry.get(16..32).map(|segment| be32(segment, 0) & 0xff_ffff)
}

/// Whether a PSV is there for who is in domain `pd`; anybody without one may name it.
pub(crate) fn check(shared: &Shared, number: u32, pd: Option<PdId>) -> Result<(), Status> {
    let own = shared.objects.psvs.get(number)?;
    if pd.is_none_or(|pd| pd == own) { Ok(()) } else { Err(Status::BadResource) }
}
