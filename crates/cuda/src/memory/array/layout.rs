//! How a CUDA array is shaped, and how it lies in memory: elements in rows, rows in planes, without
//! gaps. No program sees that; on hardware the order is a secret.

use crate::memory::Side;
use crate::{Error, Res};

/// What a program asks for (`CUDA_ARRAY3D_DESCRIPTOR`): extents in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Elements of a row.
    pub width: u64,
    /// Rows; 0 for arrays of one dimension.
    pub height: u64,
    /// Planes or layers; 0 for arrays without.
    pub depth: u64,
    /// Of a channel (`CUarray_format`).
    pub format: u32,
    /// Of an element.
    pub channels: u32,
    /// `CUDA_ARRAY3D_*`.
    pub flags: u32,
}

/// Bytes or rows of an array, from a corner on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// Where it begins: in bytes, rows, planes.
    pub corner: [u64; 3],
    /// How far it goes, likewise.
    pub extent: [u64; 3],
}

/// Where the elements of an array are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    shape: Shape,
    element: u64,
    row: u64,
    plane: u64,
    bytes: u64,
}

/// `CUDA_ARRAY3D_*`. Others than the first four change nothing about memory, or ask for what is not
/// there.
const LAYERED: u32 = 1;
const SURFACE: u32 = 2;
const CUBEMAP: u32 = 4;
const GATHER: u32 = 8;
const KNOWN: u32 = 0x1ff;
/// SPARSE, DEFERRED_MAPPING, VIDEO_ENCODE_DECODE.
const NOT_BUILT: u32 = 0x1c0;

/// Faces of a cube.
const FACES: u64 = 6;

impl Shape {
    /// Bytes of an element.
    fn element(&self) -> Res<u64> {
        let (bytes, fixed) = match self.format {
            0x01 | 0x08 => (1, None),
            0x02 | 0x09 | 0x10 => (2, None),
            0x03 | 0x0a | 0x20 => (4, None),
            // normalized integers of 8 and of 16 bits: one, two and four channels of each
            format @ 0xc0..=0xcb => {
                let channels = 1 << ((format - 0xc0) % 3);
                (if (format - 0xc0) / 3 % 2 == 0 { 1 } else { 2 }, Some(channels))
            }
            // compressed ones, and those of video
            0x50 | 0x91..=0xb5 => return Err(Error::NOT_SUPPORTED),
            _ => return Err(Error::INVALID_VALUE),
        };
        let fits = [1, 2, 4].contains(&self.channels) && fixed.is_none_or(|n| n == self.channels);
        if fits { Ok(bytes * u64::from(self.channels)) } else { Err(Error::INVALID_VALUE) }
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// The attributes of devices (`CU_DEVICE_ATTRIBUTE_MAXIMUM_*`) that bound each extent, of which
    /// one set or the other has to hold; for surfaces another. 0 where the extent is 0.
    fn bounds(&self) -> Res<([[i32; 3]; 2], [i32; 3])> {
        let is_cube = self.width == self.height && self.depth.is_multiple_of(FACES);
        let (textures, surfaces) = match (self.height, self.depth, self.flags & (LAYERED | CUBEMAP))
        {
            (0, 0, 0) => ([[21, 0, 0]; 2], [55, 0, 0]),
            (1.., 0, 0) if self.has(GATHER) => ([[45, 46, 0]; 2], [56, 57, 0]),
            (1.., 0, 0) => ([[22, 23, 0]; 2], [56, 57, 0]),
            (1.., 1.., 0) => ([[24, 25, 26], [47, 48, 49]], [58, 59, 60]),
            (0, 1.., LAYERED) => ([[42, 0, 43]; 2], [61, 0, 62]),
            (1.., 1.., LAYERED) => ([[27, 28, 29]; 2], [63, 64, 65]),
            (1.., FACES, CUBEMAP) if is_cube => ([[52, 52, 52]; 2], [66, 66, 66]),
            (1.., 1.., flags) if flags == LAYERED | CUBEMAP && is_cube => {
                ([[53, 53, 54]; 2], [67, 67, 68])
            }
            _ => return Err(Error::INVALID_VALUE),
        };
        let is_flat = self.height > 0 && self.depth == 0;
        if self.width == 0 || self.has(GATHER) && !is_flat {
            return Err(Error::INVALID_VALUE);
        }
        Ok((textures, surfaces))
    }

    fn check(&self, most: impl Fn(i32) -> u64) -> Res {
        let (textures, surfaces) = self.bounds()?;
        let extents = [self.width, self.height, self.depth];
        let holds = |bounds: &[i32; 3]| {
            extents.iter().zip(bounds).all(|(extent, bound)| *bound == 0 || *extent <= most(*bound))
        };
        let fits = textures.iter().any(holds) && (!self.has(SURFACE) || holds(&surfaces));
        if !fits || self.flags & !KNOWN != 0 {
            return Err(Error::INVALID_VALUE);
        }
        if self.has(NOT_BUILT) { Err(Error::NOT_SUPPORTED) } else { Ok(()) }
    }
}

impl Layout {
    /// The layout of a shape; `most` is the value of a device's attribute.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a shape that is none or too large; `CUDA_ERROR_NOT_SUPPORTED`
    /// for formats of video and compressed ones, and for memory that comes later.
    pub fn of(shape: Shape, most: impl Fn(i32) -> u64) -> Res<Layout> {
        let element = shape.element()?;
        shape.check(most)?;
        let sizes = || {
            let row = shape.width.checked_mul(element)?;
            let plane = row.checked_mul(shape.height.max(1))?;
            Some((row, plane, plane.checked_mul(shape.depth.max(1))?))
        };
        let (row, plane, bytes) = sizes().ok_or(Error::INVALID_VALUE)?;
        Ok(Layout { shape, element, row, plane, bytes })
    }

    /// What was asked for.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of an element.
    pub fn element(&self) -> u64 {
        self.element
    }

    /// Bytes of all of it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How its rows lie.
    pub fn side(&self) -> Side {
        Side { pitch: self.row, plane: self.plane }
    }

    /// Whether it has one row, so that offsets into it make sense.
    pub fn is_line(&self) -> bool {
        self.bytes == self.row
    }

    /// Where a part begins.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` where it goes beyond the array, or begins within an element.
    pub fn offset(&self, part: &Part) -> Res<u64> {
        let ends = [self.row, self.shape.height.max(1), self.shape.depth.max(1)];
        let is_inside = |at: usize| {
            part.corner[at].checked_add(part.extent[at]).is_some_and(|end| end <= ends[at])
        };
        let [x, y, z] = part.corner;
        if !(0..3).all(is_inside) || !x.is_multiple_of(self.element) {
            return Err(Error::INVALID_VALUE);
        }
        // within it, so less than its length
        Ok(z * self.plane + y * self.row + x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOAT: Shape =
        Shape { width: 10, height: 0, depth: 0, format: 0x20, channels: 2, flags: 0 };

    fn layout(shape: Shape) -> Res<Layout> {
        Layout::of(shape, |attribute| if attribute == 26 { 4 } else { 100 })
    }

    fn of(width: u64, height: u64, depth: u64, flags: u32) -> Res<u64> {
        layout(Shape { width, height, depth, flags, ..FLOAT }).map(|layout| layout.bytes())
    }

    const NONE: Res<u64> = Err(Error::INVALID_VALUE);

    #[test]
    fn an_array_has_one_to_three_dimensions() {
        assert_eq!((of(10, 0, 0, 0), of(10, 3, 0, 0), of(10, 3, 4, 0)), (Ok(80), Ok(240), Ok(960)));
        assert_eq!((of(0, 0, 0, 0), of(10, 0, 3, 0), of(101, 0, 0, 0)), (NONE, NONE, NONE));
        assert_eq!((of(10, 3, 5, 0), of(10, 3, 101, 0)), (Ok(1200), NONE), "of the other bounds");
        assert_eq!((of(10, 3, 0, 8), of(10, 0, 0, 8), of(10, 3, 4, 8)), (Ok(240), NONE, NONE));
        assert_eq!((of(9, 0, 0, 2), of(9, 0, 0, 0x200)), (Ok(72), NONE));
        assert_eq!(of(9, 9, 0, 0x40), Err(Error::NOT_SUPPORTED));
    }

    #[test]
    fn layers_and_faces_are_planes() {
        assert_eq!((of(10, 0, 7, 1), of(10, 2, 7, 1)), (Ok(560), Ok(1120)));
        assert_eq!((of(10, 0, 0, 1), of(10, 2, 0, 1)), (NONE, NONE));
        assert_eq!((of(5, 5, 6, 4), of(5, 5, 12, 5)), (Ok(1200), Ok(2400)));
        assert_eq!((of(5, 4, 6, 4), of(5, 5, 12, 4), of(5, 5, 13, 5)), (NONE, NONE, NONE));
    }

    #[test]
    fn an_element_has_the_bytes_of_its_channels() {
        let of = |format, channels| {
            layout(Shape { format, channels, ..FLOAT }).map(|layout| layout.element())
        };
        assert_eq!((of(1, 1), of(9, 2), of(0x10, 4), of(0xa, 4)), (Ok(1), Ok(4), Ok(8), Ok(16)));
        assert_eq!((of(0xc2, 4), of(0xc3, 1), of(0xc8, 4)), (Ok(4), Ok(2), Ok(4)));
        assert_eq!((of(0xcb, 4), of(0xc1, 2), of(0xc1, 1)), (Ok(8), Ok(2), NONE));
        assert_eq!((of(1, 3), of(1, 0), of(0, 1), of(0xcc, 1)), (NONE, NONE, NONE, NONE));
        assert_eq!(of(0xb0, 1), Err(Error::NOT_SUPPORTED));
    }

    #[test]
    fn sizes_beyond_what_numbers_hold_are_refused() {
        let huge = |width, height, depth| {
            let shape = Shape { width, height, depth, ..FLOAT };
            Layout::of(shape, |_| u64::MAX).map(|layout| layout.bytes())
        };
        assert_eq!((huge(u64::MAX, 0, 0), huge(1 << 60, 2, 0)), (NONE, NONE));
        assert_eq!((huge(1 << 20, 1 << 20, 1 << 21), huge(1 << 61, 0, 0)), (NONE, NONE));
        assert_eq!(huge(1 << 20, 1 << 20, 1 << 20), Ok(1 << 63));
    }

    #[test]
    fn a_part_is_inside_and_begins_with_an_element() {
        let layout = layout(Shape { height: 3, depth: 4, ..FLOAT }).unwrap();
        let at = |corner, extent| layout.offset(&Part { corner, extent });
        assert_eq!(layout.side(), Side { pitch: 80, plane: 240 });
        assert_eq!(at([8, 1, 2], [72, 2, 2]), Ok(568));
        assert_eq!(at([80, 3, 4], [0, 0, 0]), Ok(4 * 240 + 3 * 80 + 80));
        assert_eq!((at([8, 1, 2], [73, 2, 2]), at([8, 2, 2], [8, 2, 2])), (NONE, NONE));
        assert_eq!((at([8, 1, 3], [8, 2, 2]), at([4, 0, 0], [8, 1, 1])), (NONE, NONE));
        assert_eq!(
            (at([u64::MAX, 0, 0], [8, 1, 1]), at([8, 0, 0], [u64::MAX, 1, 1])),
            (NONE, NONE)
        );
    }
}
