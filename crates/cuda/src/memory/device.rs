//! Addresses for physical memory.

use super::physical::Physical;
use super::space::{Device, DeviceAccess, Memory, Origin, Range, Space};
use crate::{Handle, Res};
use std::sync::Arc;

/// Gives physical memory addresses, which belong to a context and the device of an ordinal.
///
/// # Errors
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(super) fn add_device(
    space: &Space,
    (context, ordinal): (Handle, i32),
    physical: Arc<Physical>,
    len: u64,
    origin: Origin,
) -> Res<u64> {
    let addresses = physical.addresses()?;
    let (start, access) = (addresses.addr(), DeviceAccess::all());
    let addresses = Some(addresses);
    let device = Device { addresses, physical, offset: 0, origin, access };
    space.add(Range::new(start, len, context, ordinal, Memory::Device(device)));
    Ok(start)
}
