//! Memory in the order of a stream, and the pools that it is taken from.

use crate::current::ready;
use crate::driver::driver;
use crate::error::answer;
use crate::ffi::{In, Out};

api! {
    fn cudaDeviceGetDefaultMemPool(pool: Out<u64>, device: i32) {
        answer((driver()?.cuDeviceGetDefaultMemPool)(pool, device))
    }

    fn cudaDeviceGetMemPool(pool: Out<u64>, device: i32) {
        answer((driver()?.cuDeviceGetMemPool)(pool, device))
    }

    fn cudaDeviceSetMemPool(device: i32, pool: u64) {
        answer((driver()?.cuDeviceSetMemPool)(device, pool))
    }

    fn cudaMemPoolCreate(pool: Out<u64>, properties: In<u8>) {
        answer((ready()?.cuMemPoolCreate)(pool, properties))
    }

    fn cudaMemPoolDestroy(pool: u64) {
        answer((ready()?.cuMemPoolDestroy)(pool))
    }

    fn cudaMemPoolTrimTo(pool: u64, keep: u64) {
        answer((ready()?.cuMemPoolTrimTo)(pool, keep))
    }

    fn cudaMemPoolGetAttribute(pool: u64, number: u32, value: Out<u8>) {
        answer((ready()?.cuMemPoolGetAttribute)(pool, number, value))
    }

    fn cudaMemPoolSetAttribute(pool: u64, number: u32, value: In<u8>) {
        answer((ready()?.cuMemPoolSetAttribute)(pool, number, value))
    }

    fn cudaMemPoolSetAccess(pool: u64, access: In<u8>, count: u64) {
        answer((ready()?.cuMemPoolSetAccess)(pool, access, count))
    }

    fn cudaMemPoolGetAccess(flags: Out<u32>, pool: u64, location: In<u8>) {
        answer((ready()?.cuMemPoolGetAccess)(flags, pool, location))
    }
}

streamed! {
    fn cudaMallocAsync, cudaMallocAsync_ptsz (addr: Out<u64>, bytes: u64, stream: u64) on stream {
        answer((ready()?.cuMemAllocAsync)(addr, bytes, stream))
    }

    fn cudaMallocFromPoolAsync, cudaMallocFromPoolAsync_ptsz
        (addr: Out<u64>, bytes: u64, pool: u64, stream: u64) on stream {
        answer((ready()?.cuMemAllocFromPoolAsync)(addr, bytes, pool, stream))
    }

    fn cudaFreeAsync, cudaFreeAsync_ptsz (addr: u64, stream: u64) on stream {
        answer((ready()?.cuMemFreeAsync)(addr, stream))
    }
}
