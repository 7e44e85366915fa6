//! What a stream captures: nothing, as in `calls/stream.rs`.

use crate::current::ready;
use crate::error::answer;
use crate::ffi::Out;

streamed! {
    fn cudaStreamGetCaptureInfo, cudaStreamGetCaptureInfo_ptsz
        (stream: u64, status: Out<u32>) on stream {
        answer((ready()?.cuStreamIsCapturing)(stream, status))
    }

    fn cudaStreamGetCaptureInfo_v2, cudaStreamGetCaptureInfo_v2_ptsz
        (stream: u64, status: Out<u32>) on stream {
        answer((ready()?.cuStreamIsCapturing)(stream, status))
    }

    fn cudaStreamGetCaptureInfo_v3, cudaStreamGetCaptureInfo_v3_ptsz
        (stream: u64, status: Out<u32>) on stream {
        answer((ready()?.cuStreamIsCapturing)(stream, status))
    }
}
