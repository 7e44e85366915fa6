//! What a stream captures, and functions of the host that it waits for.

use crate::current::ready;
use crate::error::{Error, answer};
use crate::ffi::{HostFunction, Out};

/// The last of `cudaHostTaskSyncMode`: how a stream waits makes no difference here.
const LAST_MODE: u32 = 1;

streamed! {
    // Nothing is captured, so of what else may be asked there is nothing to tell: its places stay
    // as they are.
    fn cudaStreamGetCaptureInfo, cudaStreamGetCaptureInfo_ptsz
        (stream: u64, status: Out<u32>) on stream {
        answer((ready()?.cuStreamIsCapturing)(stream, status))
    }

    fn cudaLaunchHostFunc_v2, cudaLaunchHostFunc_v2_ptsz
        (stream: u64, function: HostFunction, data: u64, mode: u32) on stream {
        let driver = ready()?;
        if mode > LAST_MODE {
            return Err(Error::INVALID_VALUE);
        }
        answer((driver.cuLaunchHostFunc)(stream, function, data))
    }
}
