//! Memory of the host that devices reach.

use crate::current::ready;
use crate::error::answer;
use crate::ffi::Out;

fn alloc(addr: Out<u64>, bytes: u64, flags: u32) -> crate::error::Res {
    let (addr, driver) = (addr.checked()?, ready()?);
    if bytes == 0 { addr.put(0) } else { answer((driver.cuMemHostAlloc)(addr, bytes, flags)) }
}

api! {
    fn cudaMallocHost(addr: Out<u64>, bytes: u64) {
        alloc(addr, bytes, 0)
    }

    fn cudaHostAlloc(addr: Out<u64>, bytes: u64, flags: u32) {
        alloc(addr, bytes, flags)
    }

    fn cudaFreeHost(addr: u64) {
        let driver = ready()?;
        if addr == 0 { Ok(()) } else { answer((driver.cuMemFreeHost)(addr)) }
    }

    fn cudaHostRegister(addr: u64, bytes: u64, flags: u32) {
        answer((ready()?.cuMemHostRegister_v2)(addr, bytes, flags))
    }

    fn cudaHostUnregister(addr: u64) {
        answer((ready()?.cuMemHostUnregister)(addr))
    }

    fn cudaHostGetDevicePointer(device: Out<u64>, addr: u64, flags: u32) {
        answer((ready()?.cuMemHostGetDevicePointer_v2)(device, addr, flags))
    }

    fn cudaHostGetFlags(flags: Out<u32>, addr: u64) {
        answer((ready()?.cuMemHostGetFlags)(flags, addr))
    }
}
