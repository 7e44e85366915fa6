//! Contexts: made, current, ended; what is set for one.

use crate::calls::init::VERSION;
use crate::ffi::{In, Out};
use cuda::queue::Stream;
use cuda::{Context, Driver, Error, Handle, current, pop, push, set_current, top};
use std::sync::Arc;

/// The context of a handle.
pub fn of(handle: Handle) -> cuda::Res<Arc<Context>> {
    Driver::get()?.contexts.get(handle).map_err(|_| Error::INVALID_CONTEXT)
}

/// The context of a handle, or for 0 the current one.
pub fn of_or_current(handle: Handle) -> cuda::Res<Arc<Context>> {
    if handle == 0 { current() } else { of(handle) }
}

fn create(out: Out<Handle>, flags: u32, device: i32) -> cuda::Res {
    let out = out.checked()?;
    let context = Driver::get()?.new_context(device, flags, false)?;
    push(&context);
    out.put(context.handle())
}

fn destroy(handle: Handle) -> cuda::Res {
    let context = of(handle)?;
    if context.is_primary() {
        return Err(Error::INVALID_CONTEXT);
    }
    if top() == handle {
        pop()?;
    }
    Driver::get()?.end(&context);
    Ok(())
}

fn take_off(out: Out<Handle>) -> cuda::Res {
    Driver::get()?;
    out.put_if_asked(pop()?);
    Ok(())
}

api! {
    fn cuCtxCreate_v2(context: Out<Handle>, flags: u32, device: i32) {
        create(context, flags, device)
    }

    fn cuCtxCreate_v3(
        context: Out<Handle>, _affinity: In<u8>, count: i32, flags: u32, device: i32,
    ) {
        // an affinity to some multiprocessors
        if count != 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        create(context, flags, device)
    }

    fn cuCtxCreate_v4(context: Out<Handle>, parameters: In<u8>, flags: u32, device: i32) {
        if parameters.addr() != 0 {
            return Err(Error::NOT_SUPPORTED);
        }
        create(context, flags, device)
    }

    fn cuCtxDestroy(context: Handle) {
        destroy(context)
    }

    fn cuCtxDestroy_v2(context: Handle) {
        destroy(context)
    }

    fn cuCtxPushCurrent(context: Handle) {
        push(&*of(context)?);
        Ok(())
    }

    fn cuCtxPushCurrent_v2(context: Handle) {
        push(&*of(context)?);
        Ok(())
    }

    fn cuCtxPopCurrent(context: Out<Handle>) {
        take_off(context)
    }

    fn cuCtxPopCurrent_v2(context: Out<Handle>) {
        take_off(context)
    }

    fn cuCtxSetCurrent(context: Handle) {
        Driver::get()?;
        let context = if context == 0 { None } else { Some(of(context)?) };
        set_current(context.as_deref());
        Ok(())
    }

    fn cuCtxGetCurrent(context: Out<Handle>) {
        Driver::get()?;
        context.put(top())
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        device.put(Driver::get()?.ordinal(current()?.gpu()))
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, context: Handle) {
        device.put(Driver::get()?.ordinal(of_or_current(context)?.gpu()))
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.put(current()?.flags())
    }

    fn cuCtxSetFlags(flags: u32) {
        current()?.set_flags(flags);
        Ok(())
    }

    fn cuCtxGetId(context: Handle, id: Out<u64>) {
        id.put(of_or_current(context)?.id())
    }

    fn cuCtxSynchronize() {
        current()?.synchronize()
    }

    fn cuCtxSynchronize_v2(context: Handle) {
        of_or_current(context)?.synchronize()
    }

    fn cuCtxGetLimit(value: Out<u64>, which: u32) {
        value.put(current()?.limit(which)?)
    }

    fn cuCtxSetLimit(which: u32, value: u64) {
        current()?.set_limit(which, value)
    }

    fn cuCtxGetCacheConfig(config: Out<u32>) {
        current()?;
        config.put(0)
    }

    fn cuCtxSetCacheConfig(_config: u32) {
        current().map(drop)
    }

    fn cuCtxGetSharedMemConfig(config: Out<u32>) {
        current()?;
        config.put(1)
    }

    fn cuCtxSetSharedMemConfig(_config: u32) {
        current().map(drop)
    }

    fn cuCtxGetApiVersion(context: Handle, version: Out<u32>) {
        of_or_current(context)?;
        version.put(VERSION as u32)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        current()?;
        least.put_if_asked(Stream::PRIORITIES.0);
        greatest.put_if_asked(Stream::PRIORITIES.1);
        Ok(())
    }

    fn cuCtxResetPersistingL2Cache() {
        current().map(drop)
    }

    fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) {
        let (own, peer) = (current()?, of(peer)?);
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        if Arc::ptr_eq(own.gpu(), peer.gpu()) {
            return Err(Error::INVALID_DEVICE);
        }
        own.enable_peer(peer.handle())
    }

    fn cuCtxDisablePeerAccess(peer: Handle) {
        let (own, peer) = (current()?, of(peer)?);
        own.disable_peer(peer.handle())
    }
}
