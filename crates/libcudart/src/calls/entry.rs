//! Versions, and the driver's functions by name.

use crate::driver::{driver, loaded};
use crate::error::{Error, answer};
use crate::ffi::{Out, Text};
use cuda::sys::Code;

/// `CUDA_ERROR_NOT_FOUND`, and how a search ends that finds no such name.
const NOT_FOUND: u32 = 500;
const NO_SUCH_NAME: u32 = 1;

/// Looks for a function. That there is none is no error: the address is then null.
pub fn find(
    name: Text,
    out: Out<u64>,
    version: u32,
    flags: u64,
    status: Out<u32>,
) -> crate::error::Res {
    let (out, driver) = (out.checked()?, driver()?);
    let version = i32::try_from(version).map_err(|_| Error::INVALID)?;
    let (mut found, mut how) = (0, 0);
    match (driver.cuGetProcAddress_v2)(name, &mut found, version, flags, &mut how) {
        NOT_FOUND => how = NO_SUCH_NAME,
        code => answer(code)?,
    }
    status.put_if_asked(how);
    out.put(if how == 0 { found } else { 0 })
}

/// The flags for programs whose default stream is each thread's own.
pub fn own(flags: u64) -> u64 {
    if flags == 0 { 2 } else { flags }
}

api! {
    // 0 where there is no driver
    fn cudaDriverGetVersion(version: Out<i32>) {
        let mut found = 0;
        if let Ok(driver) = loaded() {
            answer((driver.cuDriverGetVersion)(&mut found))?;
        }
        version.put(found)
    }

    fn cudaGetDriverEntryPointByVersion(
        name: Text, out: Out<u64>, version: u32, flags: u64, status: Out<u32>,
    ) {
        find(name, out, version, flags, status)
    }

    fn cudaGetDriverEntryPointByVersion_ptsz(
        name: Text, out: Out<u64>, version: u32, flags: u64, status: Out<u32>,
    ) {
        find(name, out, version, own(flags), status)
    }
}
