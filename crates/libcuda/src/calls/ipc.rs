//! Memory and events handed to other processes.

use crate::ffi::Out;
use cuda::memory::{IPC_BYTES, IpcHandle, close_ipc, export_ipc, open_ipc};
use cuda::queue::{Event, EventHandle};
use cuda::{Driver, Error, Handle, living};

/// `CUipcMemHandle`, `CUipcEventHandle`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Bytes([u8; IPC_BYTES]);

fn open(addr: Out<u64>, handle: Bytes) -> cuda::Res {
    let (driver, addr, context) = (Driver::get()?, addr.checked()?, living()?);
    let handle = IpcHandle::from_bytes(&handle.0).ok_or(Error::INVALID_HANDLE)?;
    let opened = open_ipc(driver, &context, handle)?;
    driver.made_in(&context)?;
    addr.put(opened)
}

api! {
    fn cuIpcGetMemHandle(handle: Out<Bytes>, addr: u64) {
        let (driver, handle) = (Driver::get()?, handle.checked()?);
        handle.put(Bytes(export_ipc(driver, addr)?.to_bytes()))
    }

    fn cuIpcOpenMemHandle(addr: Out<u64>, handle: Bytes, _flags: u32) {
        open(addr, handle)
    }

    fn cuIpcOpenMemHandle_v2(addr: Out<u64>, handle: Bytes, _flags: u32) {
        open(addr, handle)
    }

    fn cuIpcCloseMemHandle(addr: u64) {
        close_ipc(Driver::get()?, addr)
    }

    fn cuIpcGetEventHandle(handle: Out<Bytes>, event: Handle) {
        let handle = handle.checked()?;
        let event = Driver::get()?.events.get(event)?;
        handle.put(Bytes(event.export()?.to_bytes()))
    }

    fn cuIpcOpenEventHandle(event: Out<Handle>, handle: Bytes) {
        let (driver, event, context) = (Driver::get()?, event.checked()?, living()?);
        let handle = EventHandle::from_bytes(&handle.0).ok_or(Error::INVALID_HANDLE)?;
        let opened = Event::open(context.handle(), &handle)?;
        let handle = driver.events.add(|_| opened)?.0;
        driver.made_in(&context)?;
        event.put(handle)
    }
}
