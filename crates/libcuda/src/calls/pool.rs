//! Memory in the order of streams, and pools of it.

use super::vmm::{Access, Location, allowed, ordinal};
use crate::ffi::{In, Out};
use cuda::Asked;
use cuda::memory::Pool;
use cuda::{Driver, Error, Handle};
use std::sync::Arc;

/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `CU_MEM_LOCATION_TYPE_DEVICE`.
const PINNED: u32 = 1;
const DEVICE: u32 = 1;

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    kind: u32,
    handle_types: u32,
    location: u32,
    id: i32,
    security: u64,
    most: u64,
    usage: u16,
    reserved: [u8; 54],
}

api! {
    fn cuMemPoolCreate(pool: Out<Handle>, properties: In<Properties>) {
        let (driver, pool, asked) = (Driver::get()?, pool.checked()?, properties.get()?);
        if asked.kind != PINNED {
            return Err(Error::INVALID_VALUE);
        }
        // pools of host memory, and those that other processes import
        if asked.location != DEVICE || asked.handle_types != 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        pool.put(driver.new_pool(asked.id)?.handle())
    }

    fn cuMemPoolDestroy(pool: Handle) {
        let pools = &Driver::get()?.pools;
        if pools.get(pool)?.is_default() {
            return Err(Error::INVALID_VALUE);
        }
        pools.remove(pool).map(drop)
    }

    fn cuMemPoolTrimTo(pool: Handle, _keep: u64) {
        // nothing is kept
        Driver::get()?.pools.get(pool).map(drop)
    }

    fn cuMemPoolGetAttribute(pool: Handle, number: u32, value: Out<u32>) {
        let found = Driver::get()?.pools.get(pool)?.attribute(number)?;
        // the first three are of type int, the others cuuint64_t
        if number <= 3 { value.put(found as u32) } else { value.as_other().put(found) }
    }

    fn cuMemPoolSetAttribute(pool: Handle, number: u32, value: In<u64>) {
        let pool = Driver::get()?.pools.get(pool)?;
        let new = match number {
            1..=3 => u64::from(value.as_other::<u32>().get()?),
            _ => value.get()?,
        };
        pool.set_attribute(number, new)
    }

    fn cuMemPoolSetAccess(pool: Handle, access: In<Access>, count: u64) {
        let driver = Driver::get()?;
        let pool = driver.pools.get(pool)?;
        for (ordinal, flags) in allowed(driver, access, count)? {
            pool.access.set(ordinal, flags);
        }
        Ok(())
    }

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: Handle, location: In<Location>) {
        let driver = Driver::get()?;
        let pool = driver.pools.get(pool)?;
        flags.put(pool.access.of(ordinal(driver, location.get()?)?))
    }
}

fn alloc(stream: &Asked, out: Out<u64>, len: u64, pool: &Arc<Pool>) -> cuda::Res {
    let (driver, out) = (Driver::get()?, out.checked()?);
    stream.check()?;
    let (context, ordinal) = (stream.context(), driver.ordinal(pool.gpu()));
    let alloc = || pool.alloc(&driver.space, context.handle(), ordinal, len);
    let addr = alloc().or_else(|error| match error {
        // What the stream has yet to give back is there for what comes after in it.
        Error::OUT_OF_MEMORY => {
            stream.synchronize()?;
            alloc()
        }
        error => Err(error),
    });
    let addr = addr?;
    driver.made_in(context)?;
    out.put(addr)
}

streamed! {
    fn cuMemAllocAsync, cuMemAllocAsync_ptsz (addr: Out<u64>, len: u64; stream) {
        let driver = Driver::get()?;
        let pool = driver.pool(driver.ordinal(stream.context().gpu()))?;
        alloc(&stream, addr, len, &pool)
    }
    fn cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz
        (addr: Out<u64>, len: u64, pool: Handle; stream) {
        let pool = Driver::get()?.pools.get(pool)?;
        alloc(&stream, addr, len, &pool)
    }
    fn cuMemFreeAsync, cuMemFreeAsync_ptsz (addr: u64; stream) {
        let driver = Driver::get()?;
        if addr == 0 {
            return Err(Error::INVALID_VALUE);
        }
        stream.has_room()?;
        let doomed = Pool::doom(&driver.space, addr)?;
        stream.queue_fallible(move || Pool::free(&driver.space, &driver.pools, &doomed));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_structure_has_the_size_of_the_header() {
        assert_eq!(size_of::<super::Properties>(), 88);
    }
}
