//! Memory of devices, and managed memory.

use crate::calls::copy::{Extent, Pitched};
use crate::current::ready;
use crate::error::{Error, Res, answer};
use crate::ffi::Out;

/// The sizes of elements, of which the driver wants to know one: any alignment of rows is enough
/// for all.
const ELEMENT: u32 = 16;

/// Rows at a pitch of the driver's: their address and the pitch, or null where there are none.
fn rows(width: u64, rows: Option<u64>) -> Res<(u64, u64)> {
    let (driver, rows) = (ready()?, rows.ok_or(Error::INVALID_VALUE)?);
    let (mut addr, mut pitch) = (0, 0);
    if width != 0 && rows != 0 {
        answer((driver.cuMemAllocPitch_v2)(&mut addr, &mut pitch, width, rows, ELEMENT))?;
    }
    Ok((addr, pitch))
}

api! {
    fn cudaMemGetInfo(free: Out<u64>, total: Out<u64>) {
        answer((ready()?.cuMemGetInfo_v2)(free, total))
    }

    // of no bytes: null
    fn cudaMalloc(addr: Out<u64>, bytes: u64) {
        let (addr, driver) = (addr.checked()?, ready()?);
        if bytes == 0 { addr.put(0) } else { answer((driver.cuMemAlloc_v2)(addr, bytes)) }
    }

    fn cudaMallocPitch(addr: Out<u64>, pitch: Out<u64>, width: u64, height: u64) {
        let (addr, pitch) = (addr.checked()?, pitch.checked()?);
        let (found, apart) = rows(width, Some(height))?;
        addr.put(found)?;
        pitch.put(apart)
    }

    fn cudaMalloc3D(out: Out<Pitched>, extent: Extent) {
        let out = out.checked()?;
        let Extent { width, height, depth } = extent;
        let (addr, pitch) = rows(width, height.checked_mul(depth))?;
        out.put(Pitched { addr, pitch, width, height })
    }

    fn cudaFree(addr: u64) {
        let driver = ready()?;
        if addr == 0 { Ok(()) } else { answer((driver.cuMemFree_v2)(addr)) }
    }

    fn cudaMallocManaged(addr: Out<u64>, bytes: u64, flags: u32) {
        answer((ready()?.cuMemAllocManaged)(addr, bytes, flags))
    }

    fn cudaMemRangeGetAttribute(data: Out<u8>, len: u64, number: u32, addr: u64, bytes: u64) {
        answer((ready()?.cuMemRangeGetAttribute)(data, len, number, addr, bytes))
    }
}
