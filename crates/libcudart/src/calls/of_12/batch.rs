//! Several copies in one call, which says which one was refused.

use crate::batch::{Attributes, Batch};
use crate::ffi::{In, Out};

streamed! {
    fn cudaMemcpyBatchAsync, cudaMemcpyBatchAsync_ptsz
        (to: In<u64>, from: In<u64>, bytes: In<u64>, count: u64, attributes: In<Attributes>,
         firsts: In<u64>, kinds: u64, failed: Out<u64>, stream: u64) on stream {
        let batch = Batch { to, from, bytes, count, attributes, firsts, kinds };
        // none of them
        let mut at = u64::MAX;
        let queued = batch.queue(stream, &mut at);
        if queued.is_err() {
            failed.put_if_asked(at);
        }
        queued
    }
}
