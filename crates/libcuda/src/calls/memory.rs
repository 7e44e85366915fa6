//! Memory of GPUs and of the host, and what is told of it.

use crate::ffi::Out;
use cuda::memory::{self, Memory};
use cuda::{Driver, Error, Handle, current, living};

fn alloc(out: Out<u64>, bytes: u64) -> cuda::Res {
    let (driver, out, context) = (Driver::get()?, out.checked()?, living()?);
    let addr = memory::alloc(driver, &context, bytes)?;
    driver.made_in(&context)?;
    out.put(addr)
}

fn alloc_host(out: Out<u64>, bytes: u64, flags: u32) -> cuda::Res {
    let (driver, out, context) = (Driver::get()?, out.checked()?, living()?);
    let addr = memory::alloc_host(driver, &context, bytes, flags)?;
    driver.made_in(&context)?;
    out.put(addr)
}

api! {
    fn cuMemGetInfo_v2(free: Out<u64>, total: Out<u64>) {
        let context = current()?;
        free.put(context.gpu().free_bytes())?;
        total.put(context.gpu().found().memory_bytes)
    }

    fn cuMemAlloc_v2(addr: Out<u64>, bytes: u64) {
        alloc(addr, bytes)
    }

    fn cuMemAllocPitch_v2(addr: Out<u64>, pitch: Out<u64>, width: u64, height: u64, element: u32) {
        if ![4, 8, 16].contains(&element) || width == 0 || height == 0 {
            return Err(Error::INVALID_VALUE);
        }
        let pitch = pitch.checked()?;
        let row = width.checked_next_multiple_of(512).ok_or(Error::OUT_OF_MEMORY)?;
        alloc(addr, row.checked_mul(height).ok_or(Error::OUT_OF_MEMORY)?)?;
        pitch.put(row)
    }

    fn cuMemFree_v2(addr: u64) {
        let driver = Driver::get()?;
        if addr == 0 { Ok(()) } else { memory::free(driver, addr) }
    }

    fn cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<u64>, addr: u64) {
        let driver = Driver::get()?;
        let range = driver.space.at(addr).ok_or(Error::NOT_FOUND)?;
        if matches!(range.memory, Memory::Registered(_)) {
            return Err(Error::NOT_FOUND);
        }
        base.put_if_asked(range.start);
        bytes.put_if_asked(range.len);
        Ok(())
    }

    fn cuMemAllocHost_v2(addr: Out<u64>, bytes: u64) {
        alloc_host(addr, bytes, 0)
    }

    fn cuMemHostAlloc(addr: Out<u64>, bytes: u64, flags: u32) {
        alloc_host(addr, bytes, flags)
    }

    fn cuMemFreeHost(addr: u64) {
        let driver = Driver::get()?;
        if addr == 0 { Ok(()) } else { memory::free_host(driver, addr) }
    }

    fn cuMemHostRegister_v2(addr: u64, bytes: u64, flags: u32) {
        let (driver, context) = (Driver::get()?, living()?);
        memory::register_host(driver, &context, addr, bytes, flags)?;
        driver.made_in(&context)
    }

    fn cuMemHostUnregister(addr: u64) {
        memory::unregister_host(Driver::get()?, addr)
    }

    fn cuMemHostGetDevicePointer_v2(device: Out<u64>, addr: u64, flags: u32) {
        let range = Driver::get()?.space.at(addr).ok_or(Error::INVALID_VALUE)?;
        if flags != 0 || range.device().is_some() {
            return Err(Error::INVALID_VALUE);
        }
        device.put(addr)
    }

    fn cuMemHostGetFlags(flags: Out<u32>, addr: u64) {
        let range = Driver::get()?.space.at(addr).ok_or(Error::INVALID_VALUE)?;
        match range.memory {
            // all of it can be reached by GPUs
            Memory::Host(_, with) | Memory::Registered(with) => flags.put(with | 2),
            _ => Err(Error::INVALID_VALUE),
        }
    }

    fn cuMemAllocManaged(addr: Out<u64>, bytes: u64, flags: u32) {
        let (driver, out, context) = (Driver::get()?, addr.checked()?, living()?);
        let addr = memory::alloc_managed(driver, &context, bytes, flags)?;
        driver.made_in(&context)?;
        out.put(addr)
    }
}

/// Advice about managed memory, which stays where its pages are.
fn advise(addr: u64, bytes: u64, advice: u32) -> cuda::Res {
    if !(1..=6).contains(&advice) {
        return Err(Error::INVALID_VALUE);
    }
    managed(addr, bytes)
}

/// That addresses are those of managed memory.
fn managed(addr: u64, bytes: u64) -> cuda::Res {
    let range = Driver::get()?.space.at(addr).ok_or(Error::INVALID_VALUE)?;
    let end = addr.checked_add(bytes).ok_or(Error::INVALID_VALUE)?;
    let is_managed = matches!(range.memory, Memory::Managed(_)) && end <= range.end();
    if is_managed { Ok(()) } else { Err(Error::INVALID_VALUE) }
}

api! {
    fn cuMemAdvise(addr: u64, bytes: u64, advice: u32, _device: i32) {
        advise(addr, bytes, advice)
    }

    fn cuMemAdvise_v2(addr: u64, bytes: u64, advice: u32, _location: u64) {
        advise(addr, bytes, advice)
    }
}

/// `CU_MEM_LOCATION_TYPE_DEVICE`, and the ordinal that stands for the host.
const DEVICE: u32 = 1;
const CPU: i32 = -1;

fn prefetch(stream: cuda::Asked, addr: u64, bytes: u64, device: i32) -> cuda::Res {
    managed(addr, bytes)?;
    let gpu = match device {
        CPU => None,
        ordinal => Some(Driver::get()?.gpu(ordinal)?.found().number),
    };
    stream.has_room()?;
    stream.queue(Box::new(move || memory::migrate(addr, bytes, gpu)));
    Ok(())
}

streamed! {
    fn cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz (addr: u64, bytes: u64, device: i32; stream) {
        prefetch(stream, addr, bytes, device)
    }
}

/// `CUmemLocation`, which comes in a register: type, and id above it.
fn device_of(location: u64) -> i32 {
    if location as u32 == DEVICE { (location >> 32) as i32 } else { CPU }
}

streamed! {
    fn cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz
        (addr: u64, bytes: u64, location: u64, _flags: u32; stream) {
        prefetch(stream, addr, bytes, device_of(location))
    }
}

streamed! {
    fn cuStreamAttachMemAsync, cuStreamAttachMemAsync_ptsz
        (stream; addr: Handle, _bytes: u64, flags: u32) {
        let _ = stream;
        if ![1, 2, 4].contains(&flags) {
            return Err(Error::INVALID_VALUE);
        }
        managed(addr, 0)
    }
}
