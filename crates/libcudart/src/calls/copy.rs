//! Copies. All are one shape to the driver, `CUDA_MEMCPY3D`: a row is a box of one row.

use crate::current::{primary, ready};
use crate::error::{Error, Res, answer};
use crate::ffi::{In, Way};
use crate::shape::{End, Shape};

/// `cudaExtent`, of bytes where no arrays are.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Extent {
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}

/// `cudaPitchedPtr`: width and height are those of the memory's planes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pitched {
    pub addr: u64,
    pub pitch: u64,
    pub width: u64,
    pub height: u64,
}

/// `cudaPos`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Position {
    x: u64,
    y: u64,
    z: u64,
}

/// One end of a `cudaMemcpy3DParms`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Place {
    array: u64,
    position: Position,
    memory: Pitched,
}

/// `cudaMemcpy3DParms`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Box3D {
    from: Place,
    to: Place,
    extent: Extent,
    kind: u32,
}

/// `cudaMemcpy3DPeerParms`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PeerBox {
    from: Place,
    from_device: i32,
    to: Place,
    to_device: i32,
    extent: Extent,
}

/// What an end is, by the driver's numbers (`CU_MEMORYTYPE_*`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Host = 1,
    Device = 2,
    /// What the address says.
    Any = 4,
}

/// `cudaMemcpyDeviceToDevice`, `cudaMemcpyDefault`.
const BETWEEN_DEVICES: u32 = 3;
const BY_ADDRESS: u32 = 4;

/// What the ends are, source and destination, by a `cudaMemcpyKind`.
fn sides(kind: u32) -> Res<(Side, Side)> {
    Ok(match kind {
        0 => (Side::Host, Side::Host),
        1 => (Side::Host, Side::Device),
        2 => (Side::Device, Side::Host),
        BETWEEN_DEVICES => (Side::Device, Side::Device),
        BY_ADDRESS => (Side::Any, Side::Any),
        _ => return Err(Error::INVALID_DIRECTION),
    })
}

/// Whether an array has no rows that are longer than they are apart.
fn fits(pitch: u64, x: u64, width: u64, rows: u64) -> bool {
    rows <= 1 || x.checked_add(width).is_some_and(|end| end <= pitch)
}

impl Place {
    /// Rows from an address on.
    fn at(addr: u64, pitch: u64, rows: u64) -> Place {
        let memory = Pitched { addr, pitch, width: pitch, height: rows };
        Place { array: 0, position: Position { x: 0, y: 0, z: 0 }, memory }
    }

    fn end(self, side: Side, extent: &Extent) -> Res<End> {
        let Place { array, position: Position { x, y, z }, memory } = self;
        if array != 0 {
            cuda::log::say_once("cudaMemcpy3D of arrays is not there: cudaErrorNotSupported");
            return Err(Error::NOT_SUPPORTED);
        }
        let is_flat = extent.height.checked_mul(extent.depth).is_some_and(|rows| rows <= 1);
        if !is_flat && !fits(memory.pitch, x, extent.width, extent.height.max(extent.depth)) {
            return Err(Error::INVALID_PITCH);
        }
        let (host, device) = if side == Side::Host { (memory.addr, 0) } else { (0, memory.addr) };
        let (kind, pitch, height) = (side as u32, memory.pitch, memory.height);
        Ok(End { x, y, z, lod: 0, kind, host, device, array, reserved: 0, pitch, height })
    }
}

impl Box3D {
    fn shape(&self) -> Res<Shape> {
        let (from, to) = sides(self.kind)?;
        let Extent { width, height, depth } = self.extent;
        let (from, to) = (self.from.end(from, &self.extent)?, self.to.end(to, &self.extent)?);
        Ok(Shape { from, to, width, height, depth })
    }

    fn carry_out(&self, way: Way) -> Res {
        let (driver, shape) = (ready()?, self.shape()?);
        answer(match way {
            Way::Legacy => (driver.cuMemcpy3D_v2)(&shape),
            Way::Own => (driver.cuMemcpy3D_v2_ptds)(&shape),
            Way::Queued(stream) => (driver.cuMemcpy3DAsync_v2)(&shape, stream),
        })
    }
}

impl PeerBox {
    fn carry_out(&self, way: Way) -> Res {
        exist([self.from_device, self.to_device])?;
        let PeerBox { from, to, extent, .. } = *self;
        Box3D { from, to, extent, kind: BETWEEN_DEVICES }.carry_out(way)
    }
}

/// That there are such devices, and their contexts.
fn exist(devices: [i32; 2]) -> Res {
    let driver = ready()?;
    devices.into_iter().try_for_each(|device| primary(driver, device).map(drop))
}

/// Copies bytes in a row.
fn line(to: u64, from: u64, bytes: u64, kind: u32, way: Way) -> Res {
    let extent = Extent { width: bytes, height: 1, depth: 1 };
    let (from, to) = (Place::at(from, bytes, 1), Place::at(to, bytes, 1));
    Box3D { from, to, extent, kind }.carry_out(way)
}

/// Copies bytes in a row between what the addresses say.
///
/// # Errors
/// `cudaErrorInvalidValue` where memory ends before.
pub fn by_address(to: u64, from: u64, bytes: u64, way: Way) -> Res {
    line(to, from, bytes, BY_ADDRESS, way)
}

/// Copies rows between addresses with their pitches.
fn rows(to: (u64, u64), from: (u64, u64), (width, height): (u64, u64), kind: u32, way: Way) -> Res {
    if width > to.1 || width > from.1 {
        return Err(Error::INVALID_PITCH);
    }
    let extent = Extent { width, height, depth: 1 };
    let (from, to) = (Place::at(from.0, from.1, height), Place::at(to.0, to.1, height));
    Box3D { from, to, extent, kind }.carry_out(way)
}

waiting! {
    fn cudaMemcpy, cudaMemcpy_ptds (to: u64, from: u64, bytes: u64, kind: u32) by way {
        line(to, from, bytes, kind, way)
    }

    fn cudaMemcpy2D, cudaMemcpy2D_ptds
        (to: u64, to_pitch: u64, from: u64, from_pitch: u64, width: u64, height: u64, kind: u32)
        by way {
        rows((to, to_pitch), (from, from_pitch), (width, height), kind, way)
    }

    fn cudaMemcpy3D, cudaMemcpy3D_ptds (what: In<Box3D>) by way {
        what.get()?.carry_out(way)
    }

    fn cudaMemcpy3DPeer, cudaMemcpy3DPeer_ptds (what: In<PeerBox>) by way {
        what.get()?.carry_out(way)
    }
}

streamed! {
    fn cudaMemcpyAsync, cudaMemcpyAsync_ptsz
        (to: u64, from: u64, bytes: u64, kind: u32, stream: u64) on stream {
        line(to, from, bytes, kind, Way::Queued(stream))
    }

    fn cudaMemcpy2DAsync, cudaMemcpy2DAsync_ptsz
        (to: u64, to_pitch: u64, from: u64, from_pitch: u64, width: u64, height: u64, kind: u32,
         stream: u64) on stream {
        rows((to, to_pitch), (from, from_pitch), (width, height), kind, Way::Queued(stream))
    }

    fn cudaMemcpy3DAsync, cudaMemcpy3DAsync_ptsz (what: In<Box3D>, stream: u64) on stream {
        what.get()?.carry_out(Way::Queued(stream))
    }

    fn cudaMemcpy3DPeerAsync, cudaMemcpy3DPeerAsync_ptsz
        (what: In<PeerBox>, stream: u64) on stream {
        what.get()?.carry_out(Way::Queued(stream))
    }
}

api! {
    fn cudaMemcpyPeer(to: u64, to_device: i32, from: u64, from_device: i32, bytes: u64) {
        exist([to_device, from_device])?;
        line(to, from, bytes, BETWEEN_DEVICES, Way::Legacy)
    }

    fn cudaMemcpyPeerAsync(
        to: u64, to_device: i32, from: u64, from_device: i32, bytes: u64, stream: u64,
    ) {
        exist([to_device, from_device])?;
        line(to, from, bytes, BETWEEN_DEVICES, Way::Queued(stream))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_headers() {
        assert_eq!((size_of::<Box3D>(), size_of::<PeerBox>()), (160, 168));
    }

    #[test]
    fn rows_that_are_longer_than_they_are_apart_are_refused() {
        let of = |width, height, depth, pitch| {
            let place = Place::at(4096, pitch, height);
            Box3D { from: place, to: place, extent: Extent { width, height, depth }, kind: 4 }
        };
        assert_eq!(of(8, 2, 1, 4).shape(), Err(Error::INVALID_PITCH));
        assert_eq!(of(8, 1, 2, 4).shape(), Err(Error::INVALID_PITCH));
        assert!(of(8, 1, 1, 0).shape().is_ok() && of(8, 2, 2, 8).shape().is_ok());
        assert_eq!(sides(5), Err(Error::INVALID_DIRECTION));
    }
}
