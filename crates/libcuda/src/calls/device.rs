//! Devices and what they are.

use crate::ffi::{In, Out, Text, put_text};
use cuda::gpu::{Address, attribute};
use cuda::{Driver, Error, Handle};

/// Four of `CUdevprop` that are not numbers of `cuDeviceGetAttribute` by themselves.
#[repr(C)]
#[derive(Clone, Copy)]
struct Properties {
    threads_of_block: i32,
    block: [i32; 3],
    grid: [i32; 3],
    shared_bytes: i32,
    constant_bytes: i32,
    warp: i32,
    pitch: i32,
    registers: i32,
    clock_khz: i32,
    texture_alignment: i32,
}

api! {
    fn cuDeviceGetCount(count: Out<i32>) {
        count.put(Driver::get()?.gpus().len() as i32)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        Driver::get()?.gpu(ordinal)?;
        device.put(ordinal)
    }

    fn cuDeviceGetName(name: Out<u8>, len: i32, device: i32) {
        put_text(name, len, &Driver::get()?.gpu(device)?.name())
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        uuid.put(Driver::get()?.gpu(device)?.uuid())
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        uuid.put(Driver::get()?.gpu(device)?.uuid())
    }

    fn cuDeviceTotalMem_v2(bytes: Out<u64>, device: i32) {
        bytes.put(Driver::get()?.gpu(device)?.found().memory_bytes)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, number: i32, device: i32) {
        value.put(attribute(Driver::get()?.gpu(device)?, number)?)
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let gpu = Driver::get()?.gpu(device)?;
        major.put(attribute(gpu, 75)?)?;
        minor.put(attribute(gpu, 76)?)
    }

    fn cuDeviceGetProperties(properties: Out<Properties>, device: i32) {
        let gpu = Driver::get()?.gpu(device)?;
        let of = |number| attribute(gpu, number).unwrap_or(0);
        properties.put(Properties {
            threads_of_block: of(1),
            block: [of(2), of(3), of(4)],
            grid: [of(5), of(6), of(7)],
            shared_bytes: of(8),
            constant_bytes: of(9),
            warp: of(10),
            pitch: of(11),
            registers: of(12),
            clock_khz: of(13),
            texture_alignment: of(14),
        })
    }

    fn cuDeviceGetPCIBusId(text: Out<u8>, len: i32, device: i32) {
        put_text(text, len, &Driver::get()?.gpu(device)?.address().to_string().to_uppercase())
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text) {
        let driver = Driver::get()?;
        let address: Address = text.get()?.parse().map_err(|()| Error::INVALID_VALUE)?;
        let found = driver.gpus().iter().position(|gpu| gpu.address() == address);
        device.put(found.ok_or(Error::INVALID_DEVICE)? as i32)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        let driver = Driver::get()?;
        driver.gpu(device)?;
        driver.gpu(peer)?;
        can.put(i32::from(device != peer))
    }

    // performance rank, access supported, native atomics, CUDA arrays
    fn cuDeviceGetP2PAttribute(value: Out<i32>, number: u32, device: i32, peer: i32) {
        let driver = Driver::get()?;
        driver.gpu(device)?;
        driver.gpu(peer)?;
        if device == peer {
            return Err(Error::INVALID_DEVICE);
        }
        value.put(match number {
            2 => 1,
            1 | 3 | 4 | 5 => 0,
            _ => return Err(Error::INVALID_VALUE),
        })
    }

    fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) {
        let context = context.checked()?;
        context.put(Driver::get()?.retain_primary(device)?.handle())
    }

    fn cuDevicePrimaryCtxRelease(device: i32) {
        Driver::get()?.release_primary(device)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        Driver::get()?.release_primary(device)
    }

    fn cuDevicePrimaryCtxReset(device: i32) {
        Driver::get()?.reset_primary(device)
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        Driver::get()?.reset_primary(device)
    }

    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) {
        Driver::get()?.set_primary_flags(device, flags)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        Driver::get()?.set_primary_flags(device, flags)
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let (now, is_active) = Driver::get()?.primary_state(device)?;
        flags.put(now)?;
        active.put(i32::from(is_active))
    }

    fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) {
        pool.put(Driver::get()?.default_pool(device)?.handle())
    }

    fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) {
        pool.put(Driver::get()?.pool(device)?.handle())
    }

    fn cuDeviceSetMemPool(device: i32, pool: Handle) {
        Driver::get()?.set_pool(device, pool)
    }

    fn cuDeviceGetExecAffinitySupport(is_supported: Out<i32>, _kind: u32, device: i32) {
        Driver::get()?.gpu(device)?;
        is_supported.put(0)
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(
        width: Out<u64>, _format: u32, _channels: u32, device: i32,
    ) {
        Driver::get()?.gpu(device)?;
        width.put(1 << 27)
    }

    fn cuFlushGPUDirectRDMAWrites(target: u32, scope: u32) {
        cuda::current()?;
        // what a peer wrote is in memory when its write is complete
        if target == 0 && [100, 200].contains(&scope) { Ok(()) } else { Err(Error::INVALID_VALUE) }
    }

    fn cuDeviceGetNvSciSyncAttributes(_list: In<u8>, device: i32, _flags: i32) {
        Driver::get()?.gpu(device)?;
        Err(Error::NOT_SUPPORTED)
    }
}
