//! Devices: which there are, which one is the thread's, and what is set for its context.

use crate::current::{self, ready};
use crate::driver::driver;
use crate::error::{Error, answer};
use crate::ffi::{Out, Text};

/// `cudaDeviceMapHost`, which is always so.
const MAP_HOST: u32 = 8;
/// `cudaInitDeviceFlagsAreValid`.
const FLAGS_ARE_VALID: u32 = 1;

fn count() -> crate::error::Res<i32> {
    let mut count = 0;
    answer((driver()?.cuDeviceGetCount)(&mut count))?;
    Ok(count)
}

api! {
    fn cudaGetDeviceCount(out: Out<i32>) {
        let out = out.checked()?;
        out.put(0)?;
        out.put(count()?)
    }

    fn cudaGetDevice(out: Out<i32>) {
        out.checked()?.put(current::device()?)
    }

    fn cudaSetDevice(device: i32) {
        current::set_device(device)
    }

    fn cudaInitDevice(device: i32, device_flags: u32, flags: u32) {
        if flags & !FLAGS_ARE_VALID != 0 {
            return Err(Error::INVALID_VALUE);
        }
        current::make(device, (flags == FLAGS_ARE_VALID).then_some(device_flags))
    }

    fn cudaGetDeviceFlags(out: Out<u32>) {
        out.checked()?.put(current::flags()? | MAP_HOST)
    }

    fn cudaSetDeviceFlags(flags: u32) {
        current::set_flags(current::device()?, flags)
    }

    fn cudaDeviceGetAttribute(out: Out<i32>, number: i32, device: i32) {
        let (out, mut value) = (out.checked()?, 0);
        answer((driver()?.cuDeviceGetAttribute)(&mut value, number, device))?;
        out.put(value)
    }

    fn cudaDeviceGetPCIBusId(text: Out<u8>, len: i32, device: i32) {
        answer((driver()?.cuDeviceGetPCIBusId)(text, len, device))
    }

    fn cudaDeviceGetByPCIBusId(device: Out<i32>, text: Text) {
        answer((driver()?.cuDeviceGetByPCIBusId)(device, text))
    }

    fn cudaDeviceSynchronize() {
        answer((ready()?.cuCtxSynchronize)())
    }

    fn cudaThreadSynchronize() {
        answer((ready()?.cuCtxSynchronize)())
    }

    fn cudaDeviceReset() {
        current::reset()
    }

    fn cudaThreadExit() {
        current::reset()
    }

    fn cudaDeviceFlushGPUDirectRDMAWrites(target: u32, scope: u32) {
        answer((ready()?.cuFlushGPUDirectRDMAWrites)(target, scope))
    }
}

api! {
    fn cudaDeviceGetLimit(value: Out<u64>, which: u32) {
        answer((ready()?.cuCtxGetLimit)(value, which))
    }

    fn cudaThreadGetLimit(value: Out<u64>, which: u32) {
        answer((ready()?.cuCtxGetLimit)(value, which))
    }

    fn cudaDeviceSetLimit(which: u32, value: u64) {
        answer((ready()?.cuCtxSetLimit)(which, value))
    }

    fn cudaThreadSetLimit(which: u32, value: u64) {
        answer((ready()?.cuCtxSetLimit)(which, value))
    }

    fn cudaDeviceGetCacheConfig(config: Out<u32>) {
        answer((ready()?.cuCtxGetCacheConfig)(config))
    }

    fn cudaThreadGetCacheConfig(config: Out<u32>) {
        answer((ready()?.cuCtxGetCacheConfig)(config))
    }

    fn cudaDeviceSetCacheConfig(config: u32) {
        answer((ready()?.cuCtxSetCacheConfig)(config))
    }

    fn cudaThreadSetCacheConfig(config: u32) {
        answer((ready()?.cuCtxSetCacheConfig)(config))
    }

    fn cudaDeviceGetSharedMemConfig(config: Out<u32>) {
        answer((ready()?.cuCtxGetSharedMemConfig)(config))
    }

    fn cudaDeviceSetSharedMemConfig(config: u32) {
        answer((ready()?.cuCtxSetSharedMemConfig)(config))
    }

    fn cudaDeviceGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        answer((ready()?.cuCtxGetStreamPriorityRange)(least, greatest))
    }

    fn cudaCtxResetPersistingL2Cache() {
        answer((ready()?.cuCtxResetPersistingL2Cache)())
    }
}

// There is nothing to profile, and no profiler to tell.
api! {
    fn cudaProfilerStart() {
        ready().map(drop)
    }

    fn cudaProfilerStop() {
        ready().map(drop)
    }
}
