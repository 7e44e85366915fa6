//! Several copies in one call, and one with what is said of each of those.

use crate::batch::{Attributes, Batch, queue_one};
use crate::ffi::In;

streamed! {
    fn cudaMemcpyBatchAsync, cudaMemcpyBatchAsync_ptsz
        (to: In<u64>, from: In<u64>, bytes: In<u64>, count: u64, attributes: In<Attributes>,
         firsts: In<u64>, kinds: u64, stream: u64) on stream {
        Batch { to, from, bytes, count, attributes, firsts, kinds }.queue(stream, &mut 0)
    }

    fn cudaMemcpyWithAttributesAsync, cudaMemcpyWithAttributesAsync_ptsz
        (to: u64, from: u64, bytes: u64, how: In<Attributes>, stream: u64) on stream {
        queue_one(to, from, bytes, how, stream)
    }
}
