//! What is told of an address.

use crate::driver::Driver;
use crate::error::{Error, Res, answer};

/// `cudaPointerAttributes` of CUDA 12.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    kind: u32,
    device: i32,
    device_addr: u64,
    host_addr: u64,
}

/// `cudaMemoryTypeUnregistered`, `cudaMemoryTypeManaged`; host and device are numbered as by the
/// driver.
const UNREGISTERED: u32 = 0;
const MANAGED: u32 = 3;
/// `cudaInvalidDeviceId`.
const NO_DEVICE: i32 = -2;

/// Attributes of an address by the driver's numbers.
const MEMORY_TYPE: u32 = 2;
const DEVICE_ADDR: u32 = 3;
const HOST_ADDR: u32 = 4;
const IS_MANAGED: u32 = 8;
const ORDINAL: u32 = 9;

/// An attribute, as 8 bytes of which it may fill 4; `None` where the address has none.
fn attribute(driver: &Driver, number: u32, addr: u64) -> Res<Option<u64>> {
    let mut value = 0;
    match answer((driver.cuPointerGetAttribute)(&mut value, number, addr)) {
        Ok(()) => Ok(Some(value)),
        Err(Error::INVALID_VALUE) => Ok(None),
        Err(error) => Err(error),
    }
}

fn word(value: Option<u64>) -> u32 {
    value.unwrap_or(0) as u32
}

/// What the driver knows.
///
/// # Errors
/// What the driver says; not that it knows nothing of the address.
pub fn attributes(driver: &Driver, addr: u64) -> Res<Attributes> {
    let of = |number| attribute(driver, number, addr);
    let Some(kind) = of(MEMORY_TYPE)? else {
        // memory of the host, for all that the driver knows
        let (kind, device) = (UNREGISTERED, NO_DEVICE);
        return Ok(Attributes { kind, device, device_addr: 0, host_addr: addr });
    };
    let is_managed = word(of(IS_MANAGED)?) != 0;
    Ok(Attributes {
        kind: if is_managed { MANAGED } else { word(Some(kind)) },
        device: word(of(ORDINAL)?).cast_signed(),
        device_addr: of(DEVICE_ADDR)?.unwrap_or(0),
        host_addr: of(HOST_ADDR)?.unwrap_or(0),
    })
}
