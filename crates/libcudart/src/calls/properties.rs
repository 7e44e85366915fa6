//! What a device is (`cudaDeviceProp` of CUDA 12).

use crate::driver::{Driver, driver};
use crate::error::{Res, answer};
use crate::ffi::Out;

/// A field behind the first ones: its kind and the driver's attribute that says it.
#[derive(Clone, Copy)]
enum Field {
    Int(i32),
    Size(i32),
}

use Field::{Int, Size};

/// Length of the structure.
const LENGTH: usize = 1032;
/// Length of the part that the structure of CUDA 11 has too.
const COMMON: usize = 728;

/// Those that the structure of CUDA 11 has too, from `sharedMemPerBlock` on.
const FIELDS: &[Field] = &[
    // blocks and grids
    Size(8),
    Int(12),
    Int(10),
    Size(11),
    Int(1),
    Int(2),
    Int(3),
    Int(4),
    Int(5),
    Int(6),
    Int(7),
    // clock, constants, capability, alignment, overlap
    Int(13),
    Size(9),
    Int(75),
    Int(76),
    Size(14),
    Size(51),
    Int(15),
    Int(16),
    Int(17),
    Int(18),
    Int(19),
    Int(20),
    // textures
    Int(21),
    Int(77),
    Int(69),
    Int(22),
    Int(23),
    Int(73),
    Int(74),
    Int(70),
    Int(71),
    Int(72),
    Int(45),
    Int(46),
    Int(24),
    Int(25),
    Int(26),
    Int(47),
    Int(48),
    Int(49),
    Int(52),
    Int(42),
    Int(43),
    Int(27),
    Int(28),
    Int(29),
    Int(53),
    Int(54),
    // surfaces
    Int(55),
    Int(56),
    Int(57),
    Int(58),
    Int(59),
    Int(60),
    Int(61),
    Int(62),
    Int(63),
    Int(64),
    Int(65),
    Int(66),
    Int(67),
    Int(68),
    Size(30),
    // kernels, ECC, place, engines
    Int(31),
    Int(32),
    Int(33),
    Int(34),
    Int(50),
    Int(35),
    Int(40),
    Int(41),
    // memory, caches, multiprocessors
    Int(36),
    Int(37),
    Int(38),
    Int(108),
    Int(39),
    Int(78),
    Int(79),
    Int(80),
    Size(81),
    Int(82),
    // managed memory, boards, the host's access
    Int(83),
    Int(84),
    Int(85),
    Int(86),
    Int(87),
    Int(88),
    Int(89),
    Int(90),
    Int(91),
    Int(95),
    Int(96),
    Size(97),
    Int(100),
    Int(101),
    Int(106),
    Int(109),
    Size(111),
];

/// Those of CUDA 12: registration, arrays, pools, RDMA, events, clusters, pointers of functions.
const FIELDS_OF_12: &[Field] = &[
    Int(99),
    Int(112),
    Int(113),
    Int(114),
    Int(115),
    Int(116),
    Int(117),
    Int(118),
    Int(119),
    Int(121),
    Int(125),
    Int(120),
    Int(129),
];

/// The structure as it is filled.
struct Properties {
    bytes: Vec<u8>,
}

impl Properties {
    /// Appends a field at its natural alignment.
    fn append(&mut self, field: &[u8]) {
        let start = self.bytes.len().next_multiple_of(field.len());
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(field);
    }

    fn append_all(&mut self, driver: &Driver, device: i32, fields: &[Field]) {
        for field in fields {
            match *field {
                Int(number) => self.append(&attribute(driver, device, number).to_ne_bytes()),
                Size(number) => {
                    let value = attribute(driver, device, number);
                    self.append(&u64::try_from(value).unwrap_or(0).to_ne_bytes());
                }
            }
        }
    }

    /// What the driver says of a device.
    fn of(driver: &Driver, device: i32) -> Res<Properties> {
        let (mut name, mut uuid, mut total) = ([0; 256], [0; 16], 0_u64);
        answer((driver.cuDeviceGetName)(&mut name, 256, device))?;
        answer((driver.cuDeviceGetUuid_v2)(&mut uuid, device))?;
        answer((driver.cuDeviceTotalMem_v2)(&mut total, device))?;
        // the LUID and its mask, which only Windows has
        let (luid, mask) = ([0; 8], 0_u32);
        let mut all = Properties { bytes: [&name[..], &uuid, &luid].concat() };
        all.append(&mask.to_ne_bytes());
        all.append(&total.to_ne_bytes());
        all.append_all(driver, device, FIELDS);
        all.append_all(driver, device, FIELDS_OF_12);
        all.bytes.resize(LENGTH, 0);
        Ok(all)
    }
}

/// An attribute, or 0 where the driver has none of this number.
fn attribute(driver: &Driver, device: i32, number: i32) -> i32 {
    let mut value = 0;
    let is_known = (driver.cuDeviceGetAttribute)(&mut value, number, device) == 0;
    if is_known { value } else { 0 }
}

fn put(out: Out<u8>, device: i32, len: usize) -> Res {
    let out = out.checked()?;
    let all = Properties::of(driver()?, device)?;
    all.bytes.iter().take(len).enumerate().try_for_each(|(index, byte)| out.at(index).put(*byte))
}

api! {
    // by the headers of CUDA 11, whose structure is shorter
    fn cudaGetDeviceProperties(out: Out<u8>, device: i32) {
        put(out, device, COMMON)
    }

    fn cudaGetDeviceProperties_v2(out: Out<u8>, device: i32) {
        put(out, device, LENGTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_headers_have_them() {
        let mut all = Properties { bytes: vec![0; 256 + 16 + 8 + 4 + 4 + 8] };
        let mut lay = |fields: &[Field]| {
            for field in fields {
                match field {
                    Int(_) => all.append(&[0; 4]),
                    Size(_) => all.append(&[0; 8]),
                }
            }
            all.bytes.len()
        };
        // up to `major`, all that is of both, all but the reserved ones
        assert_eq!(lay(&FIELDS[..13]), 360);
        assert_eq!(lay(&FIELDS[13..]), COMMON);
        assert_eq!(lay(FIELDS_OF_12), LENGTH - 63 * 4);
    }
}
