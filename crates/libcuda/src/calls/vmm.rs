//! Virtual memory management: physical memory by handles, addresses by themselves.

use crate::ffi::{In, Out};
use cuda::memory::{self, DeviceAccess, GRANULARITY, Wanted};
use cuda::sys::duplicate;
use cuda::{Driver, Error, Handle, current, log};
use std::os::fd::IntoRawFd;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`,
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const PINNED: u32 = 1;
const DEVICE: u32 = 1;
const DESCRIPTOR: u32 = 1;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    kind: u32,
    id: i32,
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    security: u64,
    compression: u8,
    rdma: u8,
    usage: u16,
    reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Access {
    location: Location,
    flags: u32,
}

/// The ordinal of the device at a place, as access by it is kept.
pub fn ordinal(driver: &Driver, Location { kind, id }: Location) -> cuda::Res<u32> {
    if kind != DEVICE {
        return Err(Error::NOT_SUPPORTED);
    }
    driver.gpu(id)?;
    let ordinal = u32::try_from(id).ok().filter(|ordinal| *ordinal < DeviceAccess::DEVICES);
    ordinal.ok_or(Error::NOT_SUPPORTED)
}

/// What devices are to be allowed: their ordinals and flags (`CUmemAccess_flags`).
pub fn allowed(driver: &Driver, access: In<Access>, count: u64) -> cuda::Res<Vec<(u32, u32)>> {
    // one for each device, at most
    let most = DeviceAccess::DEVICES as usize;
    let count = usize::try_from(count).ok().filter(|count| (1..=most).contains(count));
    let mut asked = Vec::new();
    for Access { location, flags } in access.array(count.ok_or(Error::INVALID_VALUE)?)? {
        if ![0, 1, 3].contains(&flags) {
            return Err(Error::INVALID_VALUE);
        }
        asked.push((ordinal(driver, location)?, flags));
    }
    Ok(asked)
}

/// The device whose memory is asked for, and what for.
fn checked(properties: Properties) -> cuda::Res<(i32, Wanted)> {
    let Properties { kind, handle_types, location, rdma, .. } = properties;
    if kind != PINNED {
        return Err(Error::INVALID_VALUE);
    }
    // memory of the host, and handles that are none of POSIX
    if location.kind != DEVICE || handle_types & !DESCRIPTOR != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    Ok((location.id, Wanted { handle_types, rdma }))
}

api! {
    fn cuMemGetAllocationGranularity(bytes: Out<u64>, properties: In<Properties>, option: u32) {
        // whatever handles are wanted, which cuMemCreate may refuse
        Driver::get()?.gpu(checked(Properties { handle_types: 0, ..properties.get()? })?.0)?;
        if option > 1 { Err(Error::INVALID_VALUE) } else { bytes.put(GRANULARITY) }
    }

    fn cuMemAddressReserve(addr: Out<u64>, len: u64, align: u64, _hint: u64, flags: u64) {
        let (driver, addr) = (Driver::get()?, addr.checked()?);
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        addr.put(memory::reserve(driver, len, align)?)
    }

    fn cuMemAddressFree(addr: u64, len: u64) {
        memory::release_reserved(Driver::get()?, addr, len)
    }

    fn cuMemCreate(handle: Out<Handle>, len: u64, properties: In<Properties>, flags: u64) {
        let (driver, handle) = (Driver::get()?, handle.checked()?);
        let (device, wanted) = checked(properties.get()?)?;
        let gpu = driver.gpu(device)?;
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        handle.put(memory::create(driver, gpu, len, wanted)?)
    }

    fn cuMemRelease(handle: Handle) {
        Driver::get()?.physical.release(handle)
    }

    fn cuMemMap(addr: u64, len: u64, offset: u64, handle: Handle, flags: u64) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        memory::map(Driver::get()?, addr, len, offset, handle)
    }

    fn cuMemUnmap(addr: u64, len: u64) {
        memory::unmap(Driver::get()?, addr, len)
    }

    fn cuMemSetAccess(addr: u64, len: u64, access: In<Access>, count: u64) {
        let driver = Driver::get()?;
        memory::set_access(driver, addr, len, &allowed(driver, access, count)?)
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, addr: u64) {
        let driver = Driver::get()?;
        let ordinal = ordinal(driver, location.get()?)?;
        let range = driver.space.at(addr).ok_or(Error::INVALID_VALUE)?;
        let device = range.device().ok_or(Error::INVALID_VALUE)?;
        flags.put(u64::from(device.access.of(ordinal)))
    }

    fn cuMemExportToShareableHandle(out: Out<i32>, handle: Handle, kind: u32, flags: u64) {
        let (driver, out) = (Driver::get()?, out.checked()?);
        let physical = driver.physical.get(handle)?;
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        if kind != DESCRIPTOR {
            return Err(Error::NOT_SUPPORTED);
        }
        if physical.wanted().handle_types & DESCRIPTOR == 0 {
            log::say_once(
                "memory is exported that was made without requestedHandleTypes: \
                 CUDA_ERROR_INVALID_VALUE",
            );
            return Err(Error::INVALID_VALUE);
        }
        out.put(physical.export()?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(handle: Out<Handle>, descriptor: u64, kind: u32) {
        let (driver, handle) = (Driver::get()?, handle.checked()?);
        if kind != DESCRIPTOR {
            return Err(Error::NOT_SUPPORTED);
        }
        let descriptor = i32::try_from(descriptor).map_err(|_| Error::INVALID_VALUE)?;
        let refused = |error| Error::of_want(&error).unwrap_or(Error::INVALID_VALUE);
        let descriptor = duplicate(descriptor).map_err(refused)?;
        // What its maker said is not known, but that it may be shared.
        let wanted = Wanted { handle_types: DESCRIPTOR, rdma: 1 };
        handle.put(memory::import(driver, current()?.gpu(), descriptor, wanted)?)
    }

    fn cuMemRetainAllocationHandle(handle: Out<Handle>, addr: u64) {
        let (driver, handle) = (Driver::get()?, handle.checked()?);
        handle.put(memory::handle_at(driver, addr)?)
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: Handle) {
        let driver = Driver::get()?;
        let physical = driver.physical.get(handle)?;
        let Wanted { handle_types, rdma } = physical.wanted();
        let location = Location { kind: DEVICE, id: driver.ordinal(physical.gpu()) };
        properties.put(Properties {
            kind: PINNED,
            handle_types,
            location,
            security: 0,
            compression: 0,
            rdma,
            usage: 0,
            reserved: [0; 4],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<Properties>(), size_of::<Access>()), (32, 12));
    }
}
