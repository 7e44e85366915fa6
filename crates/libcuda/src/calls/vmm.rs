//! Virtual memory management: physical memory by handles, addresses by themselves.

use crate::ffi::{In, Out};
use cuda::memory::{self, DeviceAccess, GRANULARITY, Origin};
use cuda::sys::duplicate;
use cuda::{Driver, Error, Handle, current};
use std::os::fd::IntoRawFd;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`,
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const PINNED: u32 = 1;
const DEVICE: u32 = 1;
const DESCRIPTOR: u32 = 1;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
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
struct Access {
    location: Location,
    flags: u32,
}

/// The ordinal of a device, as access by it is kept.
fn ordinal(driver: &Driver, id: i32) -> cuda::Res<u32> {
    driver.gpu(id)?;
    let ordinal = u32::try_from(id).ok().filter(|ordinal| *ordinal < DeviceAccess::DEVICES);
    ordinal.ok_or(Error::NOT_SUPPORTED)
}

fn checked(properties: Properties) -> cuda::Res<i32> {
    let Properties { kind, handle_types, location, .. } = properties;
    if kind != PINNED {
        return Err(Error::INVALID_VALUE);
    }
    // memory of the host, and handles that are none of POSIX
    if location.kind != DEVICE || handle_types & !DESCRIPTOR != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    Ok(location.id)
}

api! {
    fn cuMemGetAllocationGranularity(bytes: Out<u64>, properties: In<Properties>, option: u32) {
        // whatever handles are wanted, which cuMemCreate may refuse
        Driver::get()?.gpu(checked(Properties { handle_types: 0, ..properties.get()? })?)?;
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
        let gpu = driver.gpu(checked(properties.get()?)?)?;
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        handle.put(memory::create(driver, gpu, len)?)
    }

    fn cuMemRelease(handle: Handle) {
        let released = Driver::get()?.physical.remove(handle);
        released.map(drop).map_err(|_| Error::INVALID_VALUE)
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
        // One for each device, at most.
        let most = DeviceAccess::DEVICES as usize;
        let count = usize::try_from(count).ok().filter(|count| *count <= most);
        let mut asked = Vec::new();
        for Access { location, flags } in access.array(count.ok_or(Error::INVALID_VALUE)?)? {
            if location.kind != DEVICE {
                return Err(Error::NOT_SUPPORTED);
            }
            asked.push((ordinal(driver, location.id)?, flags));
        }
        memory::set_access(driver, addr, len, &asked)
    }

    fn cuMemGetAccess(flags: Out<u64>, location: In<Location>, addr: u64) {
        let driver = Driver::get()?;
        let ordinal = ordinal(driver, location.get()?.id)?;
        let range = driver.space.at(addr).ok_or(Error::INVALID_VALUE)?;
        let device = range.device().ok_or(Error::INVALID_VALUE)?;
        flags.put(u64::from(device.access.of(ordinal)))
    }

    fn cuMemExportToShareableHandle(out: Out<i32>, handle: Handle, kind: u32, flags: u64) {
        let (driver, out) = (Driver::get()?, out.checked()?);
        let physical = driver.physical.get(handle).map_err(|_| Error::INVALID_VALUE)?;
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        if kind != DESCRIPTOR {
            return Err(Error::NOT_SUPPORTED);
        }
        out.put(physical.export()?.into_raw_fd())
    }

    fn cuMemImportFromShareableHandle(handle: Out<Handle>, descriptor: u64, kind: u32) {
        let (driver, handle) = (Driver::get()?, handle.checked()?);
        if kind != DESCRIPTOR {
            return Err(Error::NOT_SUPPORTED);
        }
        let descriptor = i32::try_from(descriptor).map_err(|_| Error::INVALID_VALUE)?;
        let descriptor = duplicate(descriptor).map_err(|_| Error::INVALID_VALUE)?;
        handle.put(memory::import(driver, current()?.gpu(), descriptor)?)
    }

    fn cuMemRetainAllocationHandle(handle: Out<Handle>, addr: u64) {
        let (driver, handle) = (Driver::get()?, handle.checked()?);
        let range = driver.space.at(addr).ok_or(Error::INVALID_VALUE)?;
        let device = range.device().ok_or(Error::INVALID_VALUE)?;
        if !matches!(device.origin, Origin::Mapped(_)) {
            return Err(Error::INVALID_VALUE);
        }
        let physical = device.physical.clone();
        handle.put(driver.physical.add(|_| physical)?.0)
    }

    fn cuMemGetAllocationPropertiesFromHandle(properties: Out<Properties>, handle: Handle) {
        let driver = Driver::get()?;
        let physical = driver.physical.get(handle).map_err(|_| Error::INVALID_VALUE)?;
        let location = Location { kind: DEVICE, id: driver.ordinal(physical.gpu()) };
        properties.put(Properties {
            kind: PINNED,
            handle_types: DESCRIPTOR,
            location,
            security: 0,
            compression: 0,
            rdma: 1,
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
