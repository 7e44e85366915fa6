//! What a device is, by the structures of CUDA 11 and CUDA 12.

use crate::calls::properties::{FIELDS, MORE, fill};
use crate::ffi::Out;

/// Length of the structure.
const LENGTH: usize = 1032;
/// Length of CUDA 11's.
const SHORTER: usize = 728;

api! {
    // by the headers of CUDA 11
    fn cudaGetDeviceProperties(out: Out<u8>, device: i32) {
        fill(out, device, FIELDS, SHORTER)
    }

    fn cudaGetDeviceProperties_v2(out: Out<u8>, device: i32) {
        fill(out, device, FIELDS.iter().chain(MORE), LENGTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::properties::end_of;

    #[test]
    fn fields_are_where_the_headers_have_them() {
        // up to `major`, all that is of both, all but the reserved ones
        assert_eq!(end_of(&FIELDS[..13]), 360);
        assert_eq!(end_of(FIELDS), SHORTER);
        assert_eq!(end_of(FIELDS.iter().chain(MORE)), LENGTH - 63 * 4);
    }
}
