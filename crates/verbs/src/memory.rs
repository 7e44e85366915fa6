//! Registered memory as the platform's HCA function reaches it.

use crate::env;
use crate::ffi::{Errno, Res};
use dmabuf::ControlBlocks;
use pcie::{Function, Platform, Role};
use rustix::io::Errno as System;
use std::ffi::c_int;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use umem::{AccessFlags, RegError, Umem};

impl From<RegError> for Errno {
    fn from(error: RegError) -> Errno {
        crate::log!("{error}");
        Errno(error.errno())
    }
}

/// The machine that the device sits in, and where in it.
struct Place {
    platform: Platform,
    hca: Function,
}

/// The platform, read once: `PEERDMA_PLATFORM` or the embedded default.
fn place() -> Res<&'static Place> {
    static PLACE: OnceLock<Option<Place>> = OnceLock::new();
    PLACE.get_or_init(read_place).as_ref().ok_or(Errno(libc::ENODEV))
}

fn read_place() -> Option<Place> {
    let platform = match env::platform() {
        None => Platform::default(),
        Some(path) => match Platform::from_file(&path) {
            Ok(platform) => platform,
            Err(error) => {
                crate::log!("cannot use the platform {}: {error}", path.display());
                return None;
            }
        },
    };
    let hca = platform.with_role(Role::Hca).next().cloned();
    if hca.is_none() {
        crate::log!("the platform has no function with role \"hca\"");
    }
    Some(Place { hca: hca?, platform })
}

/// Whether there is a platform to sit in; ENODEV otherwise.
pub fn check() -> Res<()> {
    place().map(drop)
}

/// Registers memory of this process.
pub fn user(addr: u64, len: u64, access: AccessFlags) -> Res<Arc<Umem>> {
    let Place { platform, hca } = place()?;
    let space = mm::AddressSpace::process();
    Ok(Umem::from_user(&space, addr, len, access, hca, platform)?)
}

/// Registers a part of the dma-buf behind `fd`. Control blocks of buffers are found through `registry`.
pub fn dmabuf(
    registry: &registry::Client,
    fd: c_int,
    offset: u64,
    len: u64,
    access: AccessFlags,
) -> Res<Arc<Umem>> {
    let Place { platform, hca } = place()?;
    Ok(Umem::from_dmabuf_fd(fd, &Controls(registry), offset, len, access, hca, platform)?)
}

/// Control blocks of other processes' buffers, published in the registry under `dmabuf-` and the id in hexadecimal.
struct Controls<'a>(&'a registry::Client);

fn name(id: u64) -> String {
    format!("dmabuf-{id:016x}")
}

fn system(error: registry::Error) -> System {
    match error {
        registry::Error::System { errno, .. } => System::from_raw_os_error(errno),
        registry::Error::Taken => System::EXIST,
        registry::Error::Timeout => System::TIMEDOUT,
        _ => System::IO,
    }
}

impl ControlBlocks for Controls<'_> {
    fn publish(&self, id: u64, control: BorrowedFd<'_>) -> Result<(), System> {
        self.0.publish(&name(id), control).map_err(system)
    }

    fn lookup(&self, id: u64) -> Result<Option<OwnedFd>, System> {
        match self.0.lookup(&name(id)) {
            Ok(control) => Ok(Some(control)),
            Err(registry::Error::Unknown) => Ok(None),
            Err(error) => Err(system(error)),
        }
    }
}
