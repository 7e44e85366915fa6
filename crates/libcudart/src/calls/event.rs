//! Events.

use crate::current::ready;
use crate::error::answer;
use crate::ffi::Out;

api! {
    fn cudaEventCreate(event: Out<u64>) {
        answer((ready()?.cuEventCreate)(event, 0))
    }

    fn cudaEventCreateWithFlags(event: Out<u64>, flags: u32) {
        answer((ready()?.cuEventCreate)(event, flags))
    }

    fn cudaEventDestroy(event: u64) {
        answer((ready()?.cuEventDestroy_v2)(event))
    }

    fn cudaEventQuery(event: u64) {
        answer((ready()?.cuEventQuery)(event))
    }

    fn cudaEventSynchronize(event: u64) {
        answer((ready()?.cuEventSynchronize)(event))
    }

    fn cudaEventElapsedTime(ms: Out<f32>, start: u64, end: u64) {
        answer((ready()?.cuEventElapsedTime)(ms, start, end))
    }

    fn cudaEventElapsedTime_v2(ms: Out<f32>, start: u64, end: u64) {
        answer((ready()?.cuEventElapsedTime)(ms, start, end))
    }
}

streamed! {
    fn cudaEventRecord, cudaEventRecord_ptsz (event: u64, stream: u64) on stream {
        answer((ready()?.cuEventRecordWithFlags)(event, stream, 0))
    }

    fn cudaEventRecordWithFlags, cudaEventRecordWithFlags_ptsz
        (event: u64, stream: u64, flags: u32) on stream {
        answer((ready()?.cuEventRecordWithFlags)(event, stream, flags))
    }
}
