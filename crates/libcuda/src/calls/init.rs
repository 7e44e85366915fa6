//! Initialisation, versions, errors, and where functions are.

use crate::entries::{self, Outcome};
use crate::export_table;
use crate::ffi::{In, Out, Text};
use cuda::{Driver, Error};
use std::ffi::CStr;

/// The CUDA version that all functions of the table are of.
pub const VERSION: i32 = 13050;

/// A constant string of C, as programs get it.
type Constant = *const std::ffi::c_char;

fn constant(out: Out<Constant>, text: Option<&'static CStr>) -> cuda::Res {
    out.put(text.map_or(std::ptr::null(), CStr::as_ptr))?;
    text.map(drop).ok_or(Error::INVALID_VALUE)
}

api! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(Error::INVALID_VALUE);
        }
        Driver::init().map(drop)
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.put(VERSION)
    }

    fn cuGetErrorName(code: u32, name: Out<Constant>) {
        constant(name, Error::name(code))
    }

    fn cuGetErrorString(code: u32, text: Out<Constant>) {
        constant(text, Error::text(code))
    }

    fn cuGetProcAddress(name: Text, function: Out<u64>, version: i32, flags: u64) {
        proc_address(name, function, version, flags).and_then(|outcome| match outcome {
            Outcome::Found => Ok(()),
            _ => Err(Error::NOT_FOUND),
        })
    }

    fn cuGetProcAddress_v2(
        name: Text, function: Out<u64>, version: i32, flags: u64, status: Out<u32>,
    ) {
        let outcome = proc_address(name, function, version, flags)?;
        status.put_if_asked(outcome as u32);
        if outcome == Outcome::Found || !status.is_null() { Ok(()) } else { Err(Error::NOT_FOUND) }
    }

    fn cuGetProcAddress_v2_ptsz(
        name: Text, function: Out<u64>, version: i32, flags: u64, status: Out<u32>,
    ) {
        let flags = if flags == 0 { 2 } else { flags };
        let outcome = proc_address(name, function, version, flags)?;
        status.put_if_asked(outcome as u32);
        if outcome == Outcome::Found || !status.is_null() { Ok(()) } else { Err(Error::NOT_FOUND) }
    }

    fn cuGetExportTable(table: Out<u64>, id: In<[u8; 16]>) {
        let found = export_table::find(&id.get()?);
        table.put(found.unwrap_or(0))?;
        found.map(drop).ok_or(Error::NOT_FOUND)
    }

    fn cuProfilerStart() {
        Driver::get().map(drop)
    }

    fn cuProfilerStop() {
        Driver::get().map(drop)
    }
}

fn proc_address(name: Text, function: Out<u64>, version: i32, flags: u64) -> cuda::Res<Outcome> {
    let (name, function) = (name.get()?, function.checked()?);
    let default = entries::default_of(flags)?;
    let version = u32::try_from(version).map_err(|_| Error::INVALID_VALUE)?;
    let (found, outcome) = entries::find(&name, version, default);
    function.put(found.unwrap_or(0))?;
    if outcome != Outcome::Found {
        cuda::log::say_once(format_args!("{name} of CUDA {version} is asked for: {outcome:?}"));
    }
    Ok(outcome)
}
