//! Access between devices, and memory and events of other processes.

use crate::current::{primary, ready};
use crate::driver::{Shared, driver};
use crate::error::answer;
use crate::ffi::Out;

api! {
    fn cudaDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        answer((driver()?.cuDeviceCanAccessPeer)(can, device, peer))
    }

    fn cudaDeviceGetP2PAttribute(value: Out<i32>, number: u32, device: i32, peer: i32) {
        answer((driver()?.cuDeviceGetP2PAttribute)(value, number, device, peer))
    }

    fn cudaDeviceEnablePeerAccess(peer: i32, flags: u32) {
        let driver = ready()?;
        answer((driver.cuCtxEnablePeerAccess)(primary(driver, peer)?, flags))
    }

    fn cudaDeviceDisablePeerAccess(peer: i32) {
        let driver = ready()?;
        answer((driver.cuCtxDisablePeerAccess)(primary(driver, peer)?))
    }
}

api! {
    fn cudaIpcGetMemHandle(handle: Out<Shared>, addr: u64) {
        answer((ready()?.cuIpcGetMemHandle)(handle, addr))
    }

    fn cudaIpcOpenMemHandle(addr: Out<u64>, handle: Shared, flags: u32) {
        answer((ready()?.cuIpcOpenMemHandle_v2)(addr, handle, flags))
    }

    fn cudaIpcCloseMemHandle(addr: u64) {
        answer((ready()?.cuIpcCloseMemHandle)(addr))
    }

    fn cudaIpcGetEventHandle(handle: Out<Shared>, event: u64) {
        answer((ready()?.cuIpcGetEventHandle)(handle, event))
    }

    fn cudaIpcOpenEventHandle(event: Out<u64>, handle: Shared) {
        answer((ready()?.cuIpcOpenEventHandle)(event, handle))
    }
}
