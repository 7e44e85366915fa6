//! Virtual memory management: addresses reserved by themselves, and memory mapped at them.

use super::space::{Device, DeviceAccess, Memory, Origin, Range};
use crate::gpu::Gpu;
use crate::memory::{Physical, Wanted};
use crate::sys::{Domain, Mapping};
use crate::{Driver, Error, Handle, Res, may_make};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// What sizes, addresses and offsets are multiples of, in bytes (`cuMemGetAllocationGranularity`).
pub const GRANULARITY: u64 = 2 << 20;

/// Reserves addresses.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a length that is none or an alignment that is no power of two;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub fn reserve(driver: &Driver, len: u64, align: u64) -> Res<u64> {
    let aligned = align == 0 || align.is_power_of_two();
    if len == 0 || !len.is_multiple_of(GRANULARITY) || !aligned {
        return Err(Error::INVALID_VALUE);
    }
    may_make()?;
    let mapping =
        Mapping::reserve(len, align.max(GRANULARITY)).map_err(|_| Error::OUT_OF_MEMORY)?;
    mapping.keep_from_children();
    Ok(driver.space.add_reserved(mapping))
}

/// Gives reserved addresses back.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` where they are not one whole reservation, or in use.
pub fn release_reserved(driver: &Driver, start: u64, len: u64) -> Res {
    driver.space.remove_reserved(start, len).map(drop)
}

/// Physical memory of a GPU; the handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for a length that is no multiple of [`GRANULARITY`],
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub fn create(driver: &Driver, gpu: &Arc<Gpu>, len: u64, wanted: Wanted) -> Res<Handle> {
    if !len.is_multiple_of(GRANULARITY) {
        return Err(Error::INVALID_VALUE);
    }
    let physical = Physical::alloc(gpu, len, Domain::Vram)?;
    driver.physical.add(physical.wanted_for(wanted))
}

/// Maps physical memory at reserved addresses. The GPU may not use them yet.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for ranges that do not fit, and for a handle that is none.
pub fn map(driver: &Driver, addr: u64, len: u64, offset: u64, handle: Handle) -> Res {
    let physical = driver.physical.get(handle)?;
    let reserved = driver.space.reserved(addr, len)?;
    let fits = offset.checked_add(len).is_some_and(|end| end <= physical.len());
    if len == 0 || [addr, len, offset].iter().any(|n| !n.is_multiple_of(GRANULARITY)) || !fits {
        return Err(Error::INVALID_VALUE);
    }
    may_make()?;
    let ordinal = driver.ordinal(physical.gpu());
    let (origin, access) = (Origin::Mapped(handle), DeviceAccess::none());
    let at = addr - reserved.addr();
    let device = Device { addresses: None, physical: physical.clone(), offset, origin, access };
    let range = Range::new(addr, len, 0, ordinal, Memory::Device(device));
    driver.space.add_if_free(range, Error::INVALID_VALUE)?;
    let mapped = physical.map_over(&reserved, at, offset, len);
    if mapped.is_err() {
        driver.space.remove(addr, |_| true)?;
    }
    mapped
}

/// The ranges that were mapped at `len` addresses, which they fill.
fn mapped(driver: &Driver, addr: u64, len: u64) -> Res<Vec<Arc<Range>>> {
    let end = addr.checked_add(len).ok_or(Error::INVALID_VALUE)?;
    let inside = |range: &Range| range.start < end && addr < range.end();
    let found = driver.space.filter(inside);
    let is_mapped = |range: &Arc<Range>| {
        range.device().is_some_and(|device| matches!(device.origin, Origin::Mapped(_)))
    };
    let total: u64 = found.iter().map(|range| range.len).sum();
    let fits = found.first().is_some_and(|first| first.start >= addr)
        && found.last().is_some_and(|last| last.end() <= end);
    if total == len && fits && found.iter().all(is_mapped) {
        Ok(found)
    } else {
        Err(Error::INVALID_VALUE)
    }
}

/// Whether a range was mapped, and others of the same device are up to `end` without a hole.
pub fn is_mapped_on(driver: &Driver, first: &Range, end: u64) -> bool {
    let is_one = |range: &Range| {
        let device = range.device();
        range.ordinal == first.ordinal
            && device.is_some_and(|device| matches!(device.origin, Origin::Mapped(_)))
    };
    let (mut goes_on, mut at) = (is_one(first), first.end());
    while goes_on && at < end {
        let next = driver.space.at(at).filter(|range| is_one(range));
        (goes_on, at) = next.map_or((false, at), |range| (true, range.end()));
    }
    goes_on
}

/// Memory that another process, or this one, exported by [`Physical::export`]; the handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for any other descriptor: one of a range of addresses is no shareable
/// handle.
pub fn import(driver: &Driver, gpu: &Arc<Gpu>, fd: OwnedFd, wanted: Wanted) -> Res<Handle> {
    let physical = Physical::import(gpu, fd)?;
    if !physical.is_whole()? {
        return Err(Error::INVALID_VALUE);
    }
    driver.physical.add(physical.wanted_for(wanted))
}

/// The handle that memory at an address was mapped by, held once more: it is to be released so much
/// more often.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for an address where nothing is mapped.
pub fn handle_at(driver: &Driver, addr: u64) -> Res<Handle> {
    let range = driver.space.at(addr).ok_or(Error::INVALID_VALUE)?;
    let device = range.device().ok_or(Error::INVALID_VALUE)?;
    let Origin::Mapped(handle) = device.origin else { return Err(Error::INVALID_VALUE) };
    driver.physical.hold(handle, &device.physical)?;
    Ok(handle)
}

/// Takes whole mappings away.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` where the addresses are not those of whole mappings.
pub fn unmap(driver: &Driver, addr: u64, len: u64) -> Res {
    let reserved = driver.space.reserved(addr, len)?;
    for range in mapped(driver, addr, len)? {
        driver.space.remove(range.start, |_| true)?;
    }
    Ok(reserved.clear(addr - reserved.addr(), len)?)
}

/// Says what devices, by their ordinals, may do at addresses (`CUmemAccess_flags`): all of it, or
/// nothing.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` where they are not those of whole mappings.
pub fn set_access(driver: &Driver, addr: u64, len: u64, asked: &[(u32, u32)]) -> Res {
    for range in mapped(driver, addr, len)? {
        let Some(device) = range.device() else { continue };
        asked.iter().for_each(|(ordinal, flags)| device.access.set(*ordinal, *flags));
    }
    Ok(())
}
