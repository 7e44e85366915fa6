//! Streams.

use crate::current::ready;
use crate::error::answer;
use crate::ffi::{HostFunction, Out, StreamCallback};

fn create(out: Out<u64>, flags: u32, priority: i32) -> crate::error::Res {
    answer((ready()?.cuStreamCreateWithPriority)(out, flags, priority))
}

api! {
    fn cudaStreamCreate(stream: Out<u64>) {
        create(stream, 0, 0)
    }

    fn cudaStreamCreateWithFlags(stream: Out<u64>, flags: u32) {
        create(stream, flags, 0)
    }

    fn cudaStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) {
        create(stream, flags, priority)
    }

    fn cudaStreamDestroy(stream: u64) {
        answer((ready()?.cuStreamDestroy_v2)(stream))
    }

    fn cudaThreadExchangeStreamCaptureMode(mode: Out<u32>) {
        answer((ready()?.cuThreadExchangeStreamCaptureMode)(mode))
    }
}

streamed! {
    fn cudaStreamQuery, cudaStreamQuery_ptsz (stream: u64) on stream {
        answer((ready()?.cuStreamQuery)(stream))
    }

    fn cudaStreamSynchronize, cudaStreamSynchronize_ptsz (stream: u64) on stream {
        answer((ready()?.cuStreamSynchronize)(stream))
    }

    fn cudaStreamWaitEvent, cudaStreamWaitEvent_ptsz
        (stream: u64, event: u64, flags: u32) on stream {
        answer((ready()?.cuStreamWaitEvent)(stream, event, flags))
    }

    fn cudaStreamGetFlags, cudaStreamGetFlags_ptsz (stream: u64, flags: Out<u32>) on stream {
        answer((ready()?.cuStreamGetFlags)(stream, flags))
    }

    fn cudaStreamGetPriority, cudaStreamGetPriority_ptsz
        (stream: u64, priority: Out<i32>) on stream {
        answer((ready()?.cuStreamGetPriority)(stream, priority))
    }

    fn cudaStreamGetId, cudaStreamGetId_ptsz (stream: u64, id: Out<u64>) on stream {
        answer((ready()?.cuStreamGetId)(stream, id))
    }

    fn cudaStreamGetDevice, cudaStreamGetDevice_ptsz (stream: u64, device: Out<i32>) on stream {
        answer((ready()?.cuStreamGetDevice)(stream, device))
    }

    fn cudaStreamIsCapturing, cudaStreamIsCapturing_ptsz
        (stream: u64, status: Out<u32>) on stream {
        answer((ready()?.cuStreamIsCapturing)(stream, status))
    }

    fn cudaStreamCopyAttributes, cudaStreamCopyAttributes_ptsz
        (stream: u64, from: u64) on stream {
        answer((ready()?.cuStreamCopyAttributes)(stream, from))
    }

    fn cudaStreamAttachMemAsync, cudaStreamAttachMemAsync_ptsz
        (stream: u64, addr: u64, bytes: u64, flags: u32) on stream {
        answer((ready()?.cuStreamAttachMemAsync)(stream, addr, bytes, flags))
    }

    fn cudaStreamAddCallback, cudaStreamAddCallback_ptsz
        (stream: u64, function: StreamCallback, data: u64, flags: u32) on stream {
        answer((ready()?.cuStreamAddCallback)(stream, function, data, flags))
    }

    fn cudaLaunchHostFunc, cudaLaunchHostFunc_ptsz
        (stream: u64, function: HostFunction, data: u64) on stream {
        answer((ready()?.cuLaunchHostFunc)(stream, function, data))
    }
}
