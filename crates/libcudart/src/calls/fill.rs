//! Fills. All are rows to the driver.

use crate::calls::copy::{Extent, Pitched};
use crate::current::ready;
use crate::error::{Error, Res, answer};
use crate::ffi::Way;

/// Fills rows with a byte.
fn fill(addr: u64, pitch: u64, value: i32, (width, height): (u64, u64), way: Way) -> Res {
    let (driver, value) = (ready()?, value as u8);
    answer(match way {
        Way::Legacy => (driver.cuMemsetD2D8_v2)(addr, pitch, value, width, height),
        Way::Own => (driver.cuMemsetD2D8_v2_ptds)(addr, pitch, value, width, height),
        Way::Queued(stream) => {
            (driver.cuMemsetD2D8Async)(addr, pitch, value, width, height, stream)
        }
    })
}

fn line(addr: u64, value: i32, bytes: u64, way: Way) -> Res {
    fill(addr, bytes, value, (bytes, 1), way)
}

/// Fills a box, plane by plane unless they follow each other.
fn planes(to: Pitched, value: i32, extent: Extent, way: Way) -> Res {
    let Extent { width, height, depth } = extent;
    if width == 0 || height == 0 || depth == 0 {
        return ready().map(drop);
    }
    if depth == 1 || height == to.height {
        let rows = height.checked_mul(depth).ok_or(Error::INVALID_VALUE)?;
        return fill(to.addr, to.pitch, value, (width, rows), way);
    }
    let plane = to.pitch.checked_mul(to.height).ok_or(Error::INVALID_VALUE)?;
    for z in 0..depth {
        let at = z.checked_mul(plane).and_then(|offset| to.addr.checked_add(offset));
        fill(at.ok_or(Error::INVALID_VALUE)?, to.pitch, value, (width, height), way)?;
    }
    Ok(())
}

waiting! {
    fn cudaMemset, cudaMemset_ptds (addr: u64, value: i32, bytes: u64) by way {
        line(addr, value, bytes, way)
    }

    fn cudaMemset2D, cudaMemset2D_ptds
        (addr: u64, pitch: u64, value: i32, width: u64, height: u64) by way {
        fill(addr, pitch, value, (width, height), way)
    }

    fn cudaMemset3D, cudaMemset3D_ptds (to: Pitched, value: i32, extent: Extent) by way {
        planes(to, value, extent, way)
    }
}

streamed! {
    fn cudaMemsetAsync, cudaMemsetAsync_ptsz
        (addr: u64, value: i32, bytes: u64, stream: u64) on stream {
        line(addr, value, bytes, Way::Queued(stream))
    }

    fn cudaMemset2DAsync, cudaMemset2DAsync_ptsz
        (addr: u64, pitch: u64, value: i32, width: u64, height: u64, stream: u64) on stream {
        fill(addr, pitch, value, (width, height), Way::Queued(stream))
    }

    fn cudaMemset3DAsync, cudaMemset3DAsync_ptsz
        (to: Pitched, value: i32, extent: Extent, stream: u64) on stream {
        planes(to, value, extent, Way::Queued(stream))
    }
}
