//! A copy as the driver has it.

/// An end of a copy as the driver has it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    pub x: u64,
    pub y: u64,
    pub z: u64,
    pub lod: u64,
    pub kind: u32,
    pub host: u64,
    pub device: u64,
    pub array: u64,
    pub reserved: u64,
    pub pitch: u64,
    pub height: u64,
}

/// A copy as the driver has it (`CUDA_MEMCPY3D`).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    pub from: End,
    pub to: End,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_the_size_of_the_headers() {
        assert_eq!(size_of::<Shape>(), 200);
    }
}
