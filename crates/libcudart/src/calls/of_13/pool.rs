//! Pools by the place of their memory. Devices have pools, the host has none.

use crate::current::ready;
use crate::driver::{Driver, Location};
use crate::error::{Error, Res, answer};
use crate::ffi::{In, Out};

/// `cudaMemAllocationTypePinned`, and managed memory's kind.
const PINNED: u32 = 1;
const MANAGED: u32 = 2;
/// `cudaMemLocationTypeDevice`, those of the host, and a part of a device.
const DEVICE: u32 = 1;
const OF_THE_HOST: [u32; 2] = [2, 3];
const PART_OF_A_DEVICE: u32 = 6;

/// The driver, and the device whose pools are meant.
fn device(location: In<Location>, kind: u32) -> Res<(&'static Driver, i32)> {
    let (driver, Location { kind: place, id }) = (ready()?, location.get()?);
    match (kind, place) {
        (PINNED, DEVICE) => Ok((driver, id)),
        (PINNED, PART_OF_A_DEVICE) | (MANAGED, 0 | DEVICE) => Err(Error::NOT_SUPPORTED),
        (PINNED | MANAGED, place) if OF_THE_HOST.contains(&place) => Err(Error::NOT_SUPPORTED),
        _ => Err(Error::INVALID_VALUE),
    }
}

api! {
    fn cudaMemGetDefaultMemPool(pool: Out<u64>, location: In<Location>, kind: u32) {
        let (driver, device) = device(location, kind)?;
        answer((driver.cuDeviceGetDefaultMemPool)(pool, device))
    }

    fn cudaMemGetMemPool(pool: Out<u64>, location: In<Location>, kind: u32) {
        let (driver, device) = device(location, kind)?;
        answer((driver.cuDeviceGetMemPool)(pool, device))
    }

    fn cudaMemSetMemPool(location: In<Location>, kind: u32, pool: u64) {
        let (driver, device) = device(location, kind)?;
        answer((driver.cuDeviceSetMemPool)(device, pool))
    }
}
