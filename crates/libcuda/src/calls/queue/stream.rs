//! Streams, and host functions in them.

use crate::ffi::{HostFunction, In, Out, StreamCallback};
use cuda::{Asked, new_stream};
use cuda::{Driver, Error, Handle};

fn create(out: Out<Handle>, flags: u32, priority: i32) -> cuda::Res {
    let out = out.checked()?;
    out.put(new_stream(flags, priority)?.handle())
}

api! {
    fn cuStreamCreate(stream: Out<Handle>, flags: u32) {
        create(stream, flags, 0)
    }

    fn cuStreamCreateWithPriority(stream: Out<Handle>, flags: u32, priority: i32) {
        create(stream, flags, priority)
    }

    fn cuStreamDestroy(stream: Handle) {
        Driver::get()?.streams.remove(stream).map(drop)
    }

    fn cuStreamDestroy_v2(stream: Handle) {
        Driver::get()?.streams.remove(stream).map(drop)
    }

    fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        // no stream captures
        if mode.now()? > 2 { Err(Error::INVALID_VALUE) } else { mode.put(0) }
    }
}

streamed! {
    fn cuStreamQuery, cuStreamQuery_ptsz (stream;) {
        stream.context().check()?;
        if stream.is_done() { Ok(()) } else { Err(Error::NOT_READY) }
    }
    fn cuStreamSynchronize, cuStreamSynchronize_ptsz (stream;) {
        stream.synchronize()
    }
    fn cuStreamWaitEvent, cuStreamWaitEvent_ptsz (stream; event: Handle, flags: u32) {
        if flags > 1 {
            return Err(Error::INVALID_VALUE);
        }
        stream.check()?;
        Driver::get()?.events.get(event)?.hold_back(&stream);
        Ok(())
    }
    fn cuStreamGetFlags, cuStreamGetFlags_ptsz (stream; flags: Out<u32>) {
        flags.put(stream.flags())
    }
    fn cuStreamGetPriority, cuStreamGetPriority_ptsz (stream; priority: Out<i32>) {
        priority.put(stream.priority())
    }
    fn cuStreamGetCtx, cuStreamGetCtx_ptsz (stream; context: Out<Handle>) {
        context.put(stream.context().handle())
    }
    fn cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz
        (stream; context: Out<Handle>, green: Out<Handle>) {
        green.put_if_asked(0);
        context.put(stream.context().handle())
    }
    fn cuStreamGetId, cuStreamGetId_ptsz (stream; id: Out<u64>) {
        id.put(stream.id())
    }
    fn cuStreamGetDevice, cuStreamGetDevice_ptsz (stream; device: Out<i32>) {
        device.put(Driver::get()?.ordinal(stream.context().gpu()))
    }
    fn cuStreamIsCapturing, cuStreamIsCapturing_ptsz (stream; status: Out<u32>) {
        let _ = stream;
        status.put(0)
    }
    fn cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz
        (stream; status: Out<u32>, id: Out<u64>) {
        let _ = stream;
        id.put_if_asked(0);
        status.put(0)
    }
    fn cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz (stream; status: Out<u32>) {
        let _ = stream;
        // what else it has a place for is only there while a stream captures
        status.put(0)
    }
    fn cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz (stream; status: Out<u32>) {
        let _ = stream;
        status.put(0)
    }
    fn cuStreamAddCallback, cuStreamAddCallback_ptsz
        (stream; callback: StreamCallback, data: u64, flags: u32) {
        let callback = callback.filter(|_| flags == 0).ok_or(Error::INVALID_VALUE)?;
        stream.has_room()?;
        let (context, handle) = (stream.context().clone(), stream.handle());
        stream.queue(Box::new(move || {
            let code = context.check().err().map_or(0, Error::code);
            callback(handle, code, data);
        }));
        Ok(())
    }
    fn cuLaunchHostFunc, cuLaunchHostFunc_ptsz (stream; function: HostFunction, data: u64) {
        let function = function.ok_or(Error::INVALID_VALUE)?;
        stream.check()?;
        // not called where the context died
        stream.queue_fallible(move || {
            function(data);
            Ok(())
        });
        Ok(())
    }
    fn cuStreamCopyAttributes, cuStreamCopyAttributes_ptsz (stream; from: Handle) {
        let _ = (stream, Asked::of(from, false)?);
        Ok(())
    }
    fn cuStreamSetAttribute, cuStreamSetAttribute_ptsz (stream; _which: u32, _value: In<u8>) {
        let _ = stream;
        Ok(())
    }
}
