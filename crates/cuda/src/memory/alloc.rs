//! Memory that programs ask for, by its addresses.

use super::device::add_device;
use super::physical::Physical;
use super::pool::Pool;
use super::space::{Memory, Origin, Range};
use crate::sys::{Access, Domain, Mapping, is_mapped, page_size};
use crate::{Context, Driver, Error, Res, may_make};
use std::sync::Arc;

/// `CU_MEMHOSTALLOC_*` and `CU_MEMHOSTREGISTER_*`.
pub struct HostFlags;

impl HostFlags {
    /// Of `cuMemHostAlloc`: PORTABLE, DEVICEMAP, WRITECOMBINED.
    const ALLOC: u32 = 7;
    /// Of `cuMemHostRegister`: PORTABLE, DEVICEMAP, IOMEMORY, READ_ONLY.
    const REGISTER: u32 = 15;
    /// IOMEMORY, which is memory of a device's.
    const IOMEMORY: u32 = 4;
}

/// Memory of a context's GPU; the address.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for 0 bytes, `CUDA_ERROR_OUT_OF_MEMORY`.
pub fn alloc(driver: &Driver, context: &Context, len: u64) -> Res<u64> {
    let physical = Arc::new(Physical::alloc(context.gpu(), len, Domain::Vram)?);
    let owner = (context.handle(), driver.ordinal(context.gpu()));
    add_device(&driver.space, owner, physical, len, Origin::Alloc)
}

/// Gives back what [`alloc`], [`alloc_managed`] or a pool gave out, when all that its context was
/// given to do is done.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for an address that none of them answered.
pub fn free(driver: &Driver, addr: u64) -> Res {
    let is_meant = |range: &Range| match &range.memory {
        Memory::Device(device) => matches!(device.origin, Origin::Alloc | Origin::Pool(_)),
        Memory::Managed(_) => true,
        _ => false,
    };
    let range = take(driver, addr, is_meant)?;
    Pool::went(&driver.pools, &range);
    Ok(())
}

/// Takes out the range that begins at an address, if it is meant and nobody else does, when all
/// that its context was given to do is done.
fn take(driver: &Driver, addr: u64, is_meant: impl Fn(&Range) -> bool) -> Res<Arc<Range>> {
    let range = driver.space.starting_at(addr, &is_meant)?;
    if !range.is_mine_to_free() {
        return Err(Error::INVALID_VALUE);
    }
    if let Ok(context) = driver.contexts.get(range.context) {
        context.queues.wait_all();
    }
    driver.space.remove(addr, is_meant)
}

/// Host memory that GPUs reach; the address, which is the same for all.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for 0 bytes and for flags that are none, `CUDA_ERROR_OUT_OF_MEMORY`.
pub fn alloc_host(driver: &Driver, context: &Context, len: u64, flags: u32) -> Res<u64> {
    if flags & !HostFlags::ALLOC != 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mapping = host_pages(len)?;
    add_host(driver, context, len, mapping.addr(), Memory::Host(mapping, flags))
}

/// Memory of the host and the GPUs; the address.
///
/// # Errors
/// As [`alloc_host`]; `flags` is `CU_MEM_ATTACH_GLOBAL` or `CU_MEM_ATTACH_HOST`.
pub fn alloc_managed(driver: &Driver, context: &Context, len: u64, flags: u32) -> Res<u64> {
    if ![1, 2].contains(&flags) {
        return Err(Error::INVALID_VALUE);
    }
    let mapping = host_pages(len)?;
    add_host(driver, context, len, mapping.addr(), Memory::Managed(mapping))
}

fn host_pages(len: u64) -> Res<Mapping> {
    let size = len.checked_next_multiple_of(page_size()).ok_or(Error::OUT_OF_MEMORY)?;
    if size == 0 {
        return Err(Error::INVALID_VALUE);
    }
    may_make()?;
    Mapping::anonymous(size, Access::Both).map_err(|_| Error::OUT_OF_MEMORY)
}

fn add_host(driver: &Driver, context: &Context, len: u64, start: u64, memory: Memory) -> Res<u64> {
    let ordinal = driver.ordinal(context.gpu());
    driver.space.add(Range::new(start, len, context.handle(), ordinal, memory));
    Ok(start)
}

/// Gives back what [`alloc_host`] gave out.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for another address.
pub fn free_host(driver: &Driver, addr: u64) -> Res {
    take(driver, addr, |range| matches!(range.memory, Memory::Host(..))).map(drop)
}

/// Lets GPUs reach memory of the program's.
///
/// # Errors
/// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED` where some of it is known already;
/// `CUDA_ERROR_INVALID_VALUE` for nothing, where nothing is mapped and for flags that are none;
/// `CUDA_ERROR_NOT_SUPPORTED` for memory of devices.
pub fn register_host(driver: &Driver, context: &Context, addr: u64, len: u64, flags: u32) -> Res {
    if addr == 0 || len == 0 || addr.checked_add(len).is_none() || flags & !HostFlags::REGISTER != 0
    {
        return Err(Error::INVALID_VALUE);
    }
    if flags & HostFlags::IOMEMORY != 0 {
        return Err(Error::NOT_SUPPORTED);
    }
    if !is_mapped(addr, len) {
        return Err(Error::INVALID_VALUE);
    }
    may_make()?;
    let ordinal = driver.ordinal(context.gpu());
    let range = Range::new(addr, len, context.handle(), ordinal, Memory::Registered(flags));
    driver.space.add_if_free(range, Error::HOST_MEMORY_ALREADY_REGISTERED).map(drop)
}

/// Takes that back, when all that contexts were given to do is done: the program may free the
/// memory then.
///
/// # Errors
/// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
pub fn unregister_host(driver: &Driver, addr: u64) -> Res {
    let is_meant = |range: &Range| matches!(range.memory, Memory::Registered(_));
    let none = |_| Error::HOST_MEMORY_NOT_REGISTERED;
    driver.space.starting_at(addr, is_meant).map_err(none)?;
    driver.contexts.all().iter().for_each(|context| context.queues.wait_all());
    driver.space.remove(addr, is_meant).map(drop).map_err(none)
}

/// Brings pages of managed memory to the memory of the platform's GPU of a number, or home for
/// `None`, as far as the preloaded library has a way: elsewhere they stay where they are, which
/// makes no difference to programs.
pub fn migrate(addr: u64, len: u64, gpu: Option<u32>) {
    let start = addr.next_multiple_of(page_size());
    let end = (addr + len) / page_size() * page_size();
    if start < end {
        crate::sys::migrate(start, end - start, gpu);
    }
}
