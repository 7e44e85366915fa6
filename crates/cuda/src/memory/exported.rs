//! Descriptors that handles for other processes name (`cuIpcGetMemHandle`): each stays open as long
//! as the range of addresses that it was exported for.

use crate::Res;
use engine_thread::lock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;

/// Length of a handle (`CU_IPC_HANDLE_SIZE`).
pub const IPC_BYTES: usize = 64;

/// By the number of their range.
static EXPORTED: Mutex<Option<HashMap<u64, OwnedFd>>> = Mutex::new(None);

/// Which file a descriptor stands for: that of its file system, and its number there.
pub type Which = (u64, u64);

/// Which file `file` is.
///
/// # Errors
/// fstat(2)'s.
pub fn which(file: &File) -> Res<Which> {
    let about = file.metadata()?;
    Ok((about.dev(), about.ino()))
}

/// The descriptor of a range, which `make` makes the first time, and its file.
///
/// # Errors
/// What `make` says.
pub fn export(range: u64, make: impl FnOnce() -> Res<OwnedFd>) -> Res<(u32, Which)> {
    let mut exported = lock(&EXPORTED);
    let fd = match exported.get_or_insert_default().entry(range) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(new) => new.insert(make()?),
    };
    let which = which(&File::from(fd.try_clone()?))?;
    Ok((fd.as_raw_fd().cast_unsigned(), which))
}

/// A range is gone.
pub fn forget(range: u64) {
    let descriptor = lock(&EXPORTED).as_mut().and_then(|exported| exported.remove(&range));
    drop(descriptor);
}
