//! Memory handed to other processes of one user on one host (`cuIpcGetMemHandle`).
//!
//! A handle names the process and its descriptor of the buffer, which the receiver opens below
//! `/proc`, and which file that is: it opens no other. The descriptor stays open until the memory
//! is freed; then its number may come to stand for anything.

use super::device::add_device;
use super::exported::{self, IPC_BYTES, Which};
use super::physical::Physical;
use super::space::{Origin, Range};
use crate::gpu::Address;
use crate::{Context, Driver, Error, Res};
use engine_thread::lock;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Mutex, Weak};

const MAGIC: [u8; 8] = *b"peerdma\x02";

/// What a handle says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IpcHandle {
    process: u32,
    fd: u32,
    which: Which,
    len: u64,
    address: Address,
}

impl IpcHandle {
    /// As C has it.
    pub fn to_bytes(self) -> [u8; IPC_BYTES] {
        let Address { domain, bus, device, function } = self.address;
        let mut bytes = [0; IPC_BYTES];
        let mut at = 0;
        for part in [
            &MAGIC[..],
            &self.process.to_le_bytes(),
            &self.fd.to_le_bytes(),
            &self.which.0.to_le_bytes(),
            &self.which.1.to_le_bytes(),
            &self.len.to_le_bytes(),
            &domain.to_le_bytes(),
            &[bus, device, function],
        ] {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        bytes
    }

    /// What bytes say; `None` for those that are no handle.
    pub fn from_bytes(bytes: &[u8; IPC_BYTES]) -> Option<IpcHandle> {
        let word = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let long = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let handle = IpcHandle {
            process: word(8)?,
            fd: word(12)?,
            which: (long(16)?, long(24)?),
            len: long(32)?,
            address: Address {
                domain: word(40)?,
                bus: bytes[44],
                device: bytes[45],
                function: bytes[46],
            },
        };
        (handle.to_bytes() == *bytes).then_some(handle)
    }
}

/// A handle of the allocation that an address is in.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for memory that is no allocation of `cuMemAlloc`.
pub fn export_ipc(driver: &Driver, addr: u64) -> Res<IpcHandle> {
    let range = driver.space.at(addr).ok_or(Error::INVALID_VALUE)?;
    let device = range.device().filter(|device| device.origin == Origin::Alloc);
    let device = device.ok_or(Error::INVALID_VALUE)?;
    let (fd, which) = exported::export(range.id, || device.physical.export())?;
    Ok(IpcHandle {
        process: std::process::id(),
        fd,
        which,
        len: range.len,
        address: device.physical.gpu().address(),
    })
}

/// Memory of other processes that contexts have addresses of.
#[derive(Default)]
pub struct OpenedMemory(Mutex<Vec<Opened>>);

/// What one handle gave a context, and how often that asked.
struct Opened {
    handle: IpcHandle,
    range: Weak<Range>,
    times: u64,
}

impl Opened {
    /// The addresses; `None` when their context is gone.
    fn range(&self) -> Option<Arc<Range>> {
        self.range.upgrade().filter(|range| !range.is_gone())
    }
}

/// Gives memory of another process addresses in this one: the same ones to a context that has it
/// already, which is to close it so much more often.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` for memory of this process; `CUDA_ERROR_INVALID_HANDLE` where the
/// handle is none or its memory is gone; `CUDA_ERROR_INVALID_DEVICE` where this process does not
/// see the GPU.
pub fn open_ipc(driver: &Driver, context: &Context, handle: IpcHandle) -> Res<u64> {
    if handle.process == std::process::id() {
        return Err(Error::INVALID_CONTEXT);
    }
    let mut all = lock(&driver.opened.0);
    all.retain(|opened| opened.range().is_some());
    for opened in all.iter_mut().filter(|opened| opened.handle == handle) {
        if let Some(range) = opened.range().filter(|range| range.context == context.handle()) {
            opened.times += 1;
            return Ok(range.start);
        }
    }
    all.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
    let gpu = driver.gpus().iter().find(|gpu| gpu.address() == handle.address);
    let gpu = gpu.ok_or(Error::INVALID_DEVICE)?;
    let file = file_of(&handle)?;
    if file.metadata()?.len() < handle.len {
        return Err(Error::INVALID_HANDLE);
    }
    let physical = Arc::new(Physical::import(gpu, file.into())?);
    let owner = (context.handle(), driver.ordinal(gpu));
    let start = add_device(&driver.space, owner, physical, handle.len, Origin::Ipc)?;
    let range = driver.space.starting_at(start, is_opened)?;
    all.push(Opened { handle, range: Arc::downgrade(&range), times: 1 });
    Ok(start)
}

fn is_opened(range: &Range) -> bool {
    range.device().is_some_and(|device| device.origin == Origin::Ipc)
}

/// The file that a handle names, which is not opened before it is known to be that one: to open
/// another may do anything, or wait for ever.
fn file_of(handle: &IpcHandle) -> Res<File> {
    let open = |path: String, flags: i32| {
        let opened = File::options().read(true).write(true).custom_flags(flags).open(&path);
        opened.map_err(|error| {
            crate::log::say(format_args!("memory of another process, {path}: {error}"));
            Error::INVALID_HANDLE
        })
    };
    let named = open(format!("/proc/{}/fd/{}", handle.process, handle.fd), libc::O_PATH)?;
    let here = format!("/proc/self/fd/{}", named.as_raw_fd());
    // Of a memfd only the kernel is asked which it is, and no file system.
    let is_memfd = std::fs::read_link(&here)?.as_os_str().as_bytes().starts_with(b"/memfd:");
    if !is_memfd || exported::which(&named)? != handle.which {
        return Err(Error::INVALID_HANDLE);
    }
    open(here, 0)
}

/// Takes that back; the last time the addresses go.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for an address that [`open_ipc`] did not answer.
pub fn close_ipc(driver: &Driver, addr: u64) -> Res {
    let mut all = lock(&driver.opened.0);
    let is_it = |opened: &Opened| opened.range().is_some_and(|range| range.start == addr);
    let at = all.iter().position(is_it).ok_or(Error::INVALID_VALUE)?;
    all[at].times -= 1;
    if all[at].times > 0 {
        return Ok(());
    }
    all.swap_remove(at);
    driver.space.remove(addr, is_opened).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_its_bytes_and_others_are_none() {
        let address = "0001:9a:02.0".parse().unwrap();
        let handle = IpcHandle { process: 7, fd: 1000, which: (1, 1 << 40), len: 99, address };
        let bytes = handle.to_bytes();
        assert_eq!(IpcHandle::from_bytes(&bytes), Some(handle));
        for at in [0, 47, 63] {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert_eq!(IpcHandle::from_bytes(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn a_descriptor_that_has_become_another_file_is_not_opened() {
        let address = "0001:9a:02.0".parse().unwrap();
        let file = File::open("/proc/self/exe").unwrap();
        let (process, fd) = (std::process::id(), file.as_raw_fd().cast_unsigned());
        let (dev, ino) = exported::which(&file).unwrap();
        // The last one is the file, but no memory.
        for which in [(dev, ino + 1), (dev + 1, ino), (dev, ino)] {
            let handle = IpcHandle { process, fd, which, len: 1, address };
            assert_eq!(file_of(&handle).unwrap_err(), Error::INVALID_HANDLE);
        }
    }
}
