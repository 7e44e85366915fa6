//! What a device is, by the structure of CUDA 13.

use crate::calls::properties::Field::{self, Int};
use crate::calls::properties::{FIELDS, MORE, fill};
use crate::ffi::Out;

/// Length of the structure.
const LENGTH: usize = 1008;

/// Attributes that CUDA 12's structure has, and this one has not: clocks, modes, and what all
/// devices can.
const GONE: [i32; 8] = [13, 15, 17, 20, 36, 69, 87, 96];

/// Fields behind CUDA 12's: NUMA nodes, MPS, the device's numbers on PCI.
const LAST: &[Field] = &[Int(130), Int(131), Int(133), Int(134), Int(139), Int(140), Int(143)];

fn fields() -> impl Iterator<Item = &'static Field> {
    let stays = |field: &&Field| !GONE.contains(&field.attribute());
    FIELDS.iter().chain(MORE).filter(stays).chain(LAST)
}

api! {
    fn cudaGetDeviceProperties(out: Out<u8>, device: i32) {
        fill(out, device, fields(), LENGTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::properties::end_of;

    #[test]
    fn fields_are_where_the_headers_have_them() {
        assert_eq!(fields().count(), FIELDS.len() + MORE.len() + LAST.len() - GONE.len());
        assert_eq!(end_of(fields()), LENGTH - 56 * 4);
    }
}
