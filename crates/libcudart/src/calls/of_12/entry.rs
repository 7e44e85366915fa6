//! The version, and what depends on it.

use crate::calls::entry::{find, own};
use crate::ffi::{Out, Text};

/// The version of the interface: 12.9.
const VERSION: u32 = 12090;

api! {
    fn cudaRuntimeGetVersion(version: Out<i32>) {
        version.put(VERSION.cast_signed())
    }

    fn cudaGetDriverEntryPoint(name: Text, out: Out<u64>, flags: u64, status: Out<u32>) {
        find(name, out, VERSION, flags, status)
    }

    fn cudaGetDriverEntryPoint_ptsz(name: Text, out: Out<u64>, flags: u64, status: Out<u32>) {
        find(name, out, VERSION, own(flags), status)
    }
}
