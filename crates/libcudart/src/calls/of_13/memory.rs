//! Advice about managed memory, by a place.

use crate::current::ready;
use crate::driver::Location;
use crate::error::answer;

api! {
    fn cudaMemAdvise(addr: u64, bytes: u64, advice: u32, location: Location) {
        answer((ready()?.cuMemAdvise_v2)(addr, bytes, advice, location))
    }
}

streamed! {
    fn cudaMemPrefetchAsync, cudaMemPrefetchAsync_ptsz
        (addr: u64, bytes: u64, location: Location, flags: u32, stream: u64) on stream {
        answer((ready()?.cuMemPrefetchAsync_v2)(addr, bytes, location, flags, stream))
    }
}
