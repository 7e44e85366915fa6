//! Registers about the firmware (`mcam_reg`, `mcqs_reg`, `mcqi_reg`): one image, running, nothing
//! stored beside it. `devlink dev info` shows them.

use crate::layout::bits::Field;
use crate::layout::head::Status;
use crate::layout::identity::FIRMWARE;

const MCQS: u16 = 0x9060;
const MCQI: u16 = 0x9061;
const MCAM: u16 = 0x907f;

const ACCESS_GROUP: Field = Field::new(0x18, 8);
const OFFERS_MCQI: Field = Field::new(0x5e, 1);
const OFFERS_MCQS: Field = Field::new(0x5f, 1);
/// The registers from 0x9000 to 0x907f.
const FIRST_GROUP: u64 = 0;

const COMPONENT: Field = Field::new(0x10, 16);
const LAST: Field = Field::new(0x0, 1);
const IDENTIFIER: Field = Field::new(0x30, 16);
const BOOT_IMAGE: u64 = 1;

const INFO_TYPE: Field = Field::new(0x5b, 5);
const INFO_VERSION: u64 = 1;
const VERSION: Field = Field::new(0xc0 + 0x20, 32);

/// Bytes of the longest of them. A driver sends less of it than it wants to read.
const LEN: usize = 24 + 124;

/// Whether a register is one of these.
pub(crate) fn knows(register: u16) -> bool {
    matches!(register, MCQS | MCQI | MCAM)
}

/// Fills in what is read of one.
pub(crate) fn read(register: u16, data: &mut Vec<u8>) -> Result<(), Status> {
    data.resize(LEN.max(data.len()), 0);
    match register {
        MCAM if ACCESS_GROUP.get(data) == FIRST_GROUP => {
            OFFERS_MCQI.set(data, 1);
            OFFERS_MCQS.set(data, 1);
        }
        MCAM => {}
        _ if COMPONENT.get(data) != 0 => return Err(Status::BadIndex),
        MCQS => {
            LAST.set(data, 1);
            IDENTIFIER.set(data, BOOT_IMAGE);
        }
        MCQI if INFO_TYPE.get(data) == INFO_VERSION => {
            let (major, minor, sub) = FIRMWARE;
            let version = u64::from(major) << 24 | u64::from(minor) << 16 | u64::from(sub);
            VERSION.set(data, version);
        }
        _ => return Err(Status::BadParameter),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_image_that_runs_is_found_and_has_the_version_of_the_initialization_segment() {
        let mut data = vec![0; 72];
        read(MCAM, &mut data).unwrap();
        assert!(OFFERS_MCQI.is_set(&data) && OFFERS_MCQS.is_set(&data));
        let mut data = vec![0; 16];
        read(MCQS, &mut data).unwrap();
        assert_eq!((data[0] >> 7, IDENTIFIER.get(&data)), (1, BOOT_IMAGE));
        let mut data = vec![0; 24];
        INFO_TYPE.set(&mut data, INFO_VERSION);
        read(MCQI, &mut data).unwrap();
        assert_eq!(data[28..32], [40, 46, 3, 238]);
        COMPONENT.set(&mut data, 1);
        assert_eq!(read(MCQI, &mut data), Err(Status::BadIndex));
    }
}
