//! The shape of a copy or a fill: rows of bytes, in planes.

use crate::{Error, Res};

/// How rows lie on one side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Side {
    /// From one row to the next, in bytes.
    pub pitch: u64,
    /// From one plane to the next, in bytes.
    pub plane: u64,
}

/// Rows of `width` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// Bytes of a row.
    pub width: u64,
    /// Rows of a plane.
    pub height: u64,
    /// Planes.
    pub depth: u64,
    /// Where they go.
    pub to: Side,
    /// Where they come from.
    pub from: Side,
}

impl Rows {
    /// One row.
    pub fn line(width: u64) -> Rows {
        Rows { width, height: 1, depth: 1, to: Side::default(), from: Side::default() }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.width == 0 || self.height == 0 || self.depth == 0
    }

    /// From the first byte of a side to behind its last one.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` where it is more than addresses reach, or rows overlap.
    pub fn reach(&self, side: Side) -> Res<u64> {
        if self.is_empty() {
            return Ok(0);
        }
        let rows_overlap = self.height > 1 && side.pitch < self.width;
        let last = || {
            let rows = (self.height - 1).checked_mul(side.pitch)?;
            let planes = (self.depth - 1).checked_mul(side.plane)?;
            rows.checked_add(planes)?.checked_add(self.width)
        };
        let planes_overlap = self.depth > 1
            && side.plane < (self.height - 1).saturating_mul(side.pitch).saturating_add(self.width);
        if rows_overlap || planes_overlap {
            return Err(Error::INVALID_VALUE);
        }
        last().ok_or(Error::INVALID_VALUE)
    }

    /// Calls `row` with where each row begins on either side, until one fails.
    pub(super) fn each<E>(&self, mut row: impl FnMut(u64, u64) -> Result<(), E>) -> Result<(), E> {
        if self.is_empty() {
            return Ok(());
        }
        for plane in 0..self.depth {
            for line in 0..self.height {
                let at = |side: Side| plane * side.plane + line * side.pitch;
                row(at(self.to), at(self.from))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_reach_as_far_as_their_last_byte() {
        let side = Side { pitch: 16, plane: 64 };
        let rows = Rows { width: 10, height: 3, depth: 2, to: side, from: Side::default() };
        assert_eq!(rows.reach(side), Ok(64 + 32 + 10));
        assert_eq!(rows.reach(Side { pitch: 8, plane: 64 }), Err(Error::INVALID_VALUE));
        assert_eq!(rows.reach(Side { pitch: 16, plane: 41 }), Err(Error::INVALID_VALUE));
        assert_eq!(rows.reach(Side { pitch: u64::MAX, plane: 0 }), Err(Error::INVALID_VALUE));
        let mut seen = Vec::new();
        let note = |to, from| {
            seen.push((to, from));
            Ok::<(), ()>(())
        };
        Rows { from: Side { pitch: 10, plane: 30 }, ..rows }.each(note).unwrap();
        assert_eq!(seen, [(0, 0), (16, 10), (32, 20), (64, 30), (80, 40), (96, 50)]);
        assert_eq!(Rows { height: 0, ..rows }.reach(side), Ok(0));
    }
}
