//! What is told of an address.

use crate::calls::pointer::{Attributes, attributes};
use crate::current::ready;
use crate::ffi::Out;

/// `cudaPointerAttributes`, which has a domain of the device's memory behind what CUDA 12's has.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Longer {
    attributes: Attributes,
    domain: i32,
    reserved: [u32; 15],
}

/// The domain of memory that is in none: no device here has them.
const NO_DOMAIN: i32 = -1;

api! {
    fn cudaPointerGetAttributes(out: Out<Longer>, addr: u64) {
        let out = out.checked()?;
        let attributes = attributes(ready()?, addr)?;
        out.put(Longer { attributes, domain: NO_DOMAIN, reserved: [0; 15] })
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_structure_has_the_size_of_the_header() {
        assert_eq!(size_of::<super::Longer>(), 88);
    }
}
