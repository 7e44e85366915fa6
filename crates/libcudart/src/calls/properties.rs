//! What a device is: how a `cudaDeviceProp` is filled. Which fields it has is its version's.

use crate::driver::{Driver, driver};
use crate::error::{Res, answer};
use crate::ffi::Out;

/// A field behind the first ones: its kind and the driver's attribute that says it.
#[derive(Clone, Copy)]
pub enum Field {
    Int(i32),
    Size(i32),
}

use Field::{Int, Size};

impl Field {
    /// The driver's attribute.
    pub fn attribute(self) -> i32 {
        match self {
            Int(number) | Size(number) => number,
        }
    }
}

/// Those of CUDA 11, from `sharedMemPerBlock` on.
pub const FIELDS: &[Field] = &[
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

/// Those that CUDA 12 has behind them: registration, arrays, pools, RDMA, events, clusters,
/// pointers of functions.
pub const MORE: &[Field] = &[
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

    fn append_all<'a>(
        &mut self,
        fields: impl IntoIterator<Item = &'a Field>,
        attribute: impl Fn(i32) -> i32,
    ) {
        for field in fields {
            match *field {
                Int(number) => self.append(&attribute(number).to_ne_bytes()),
                Size(number) => {
                    let value = u64::try_from(attribute(number)).unwrap_or(0);
                    self.append(&value.to_ne_bytes());
                }
            }
        }
    }

    /// What stands before the fields.
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
        Ok(all)
    }
}

/// An attribute, or 0 where the driver has none of this number.
fn attribute(driver: &Driver, device: i32, number: i32) -> i32 {
    let mut value = 0;
    let is_known = (driver.cuDeviceGetAttribute)(&mut value, number, device) == 0;
    if is_known { value } else { 0 }
}

/// Fills a structure of a length that ends with these fields, or with reserved ones behind them.
///
/// # Errors
/// `cudaErrorInvalidValue` for a null pointer, `cudaErrorInvalidDevice`.
pub fn fill<'a>(
    out: Out<u8>,
    device: i32,
    fields: impl IntoIterator<Item = &'a Field>,
    len: usize,
) -> Res {
    let (out, driver) = (out.checked()?, driver()?);
    let mut all = Properties::of(driver, device)?;
    all.append_all(fields, |number| attribute(driver, device, number));
    all.bytes.resize(len, 0);
    all.bytes.iter().enumerate().try_for_each(|(index, byte)| out.at(index).put(*byte))
}

/// Where a structure of these fields ends.
#[cfg(test)]
pub fn end_of<'a>(fields: impl IntoIterator<Item = &'a Field>) -> usize {
    let mut all = Properties { bytes: vec![0; 256 + 16 + 8 + 4 + 4 + 8] };
    all.append_all(fields, |_| 0);
    all.bytes.len()
}
