//! Loading a libibverbs at run time.

use crate::context::Context;
use crate::error::{Error, Result};
use crate::ffi;
use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use verbs_sys::ibv_device;

/// A loaded libibverbs. It stays loaded until the process ends: a provider may have started threads
/// that run its code.
#[derive(Clone)]
pub struct Library {
    pub(crate) inner: Arc<Loaded>,
}

pub(crate) struct Loaded {
    pub(crate) functions: ffi::Functions,
    path: PathBuf,
}

/// A device in the list of a library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name, for instance `mlx5_0`.
    pub name: String,
    /// Node GUID.
    pub guid: u64,
}

impl Library {
    /// The library that the dynamic linker finds as `libibverbs.so.1`: the preloaded one if there
    /// is one, else the first on the library path.
    pub fn system() -> Result<Library> {
        Library::load("libibverbs.so.1")
    }

    /// The library at `path`; a name without a slash is searched as the dynamic linker does.
    pub fn load(path: impl AsRef<Path>) -> Result<Library> {
        let path = path.as_ref();
        let fail = |reason: String| Error::Load { path: path.to_owned(), reason };
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| fail("the path holds a NUL byte".into()))?;
        // SAFETY: `name` is a NUL-terminated string. Constructors of the library run; naming a
        // library is trusting it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(fail(linker_error()));
        }
        // SAFETY: `handle` is a live handle that is never closed, and every name ends in NUL (the
        // macro adds it). The functions of that name in a libibverbs have the prototypes of
        // verbs.h.
        let functions = unsafe {
            ffi::Functions::load(|symbol| {
                libc::dlsym(handle, symbol.as_ptr().cast::<libc::c_char>())
            })
        }
        .map_err(|symbol| Error::Symbol { path: path.to_owned(), symbol })?;
        Ok(Library { inner: Arc::new(Loaded { functions, path: path.to_owned() }) })
    }

    /// The path or name it was loaded by.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The devices this library offers.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>> {
        self.with_devices(|devices| {
            devices
                .iter()
                .map(|&device| DeviceInfo {
                    name: self.name(device),
                    // SAFETY: `device` is an entry of the list that `with_devices` holds.
                    guid: u64::from_be(unsafe {
                        (self.inner.functions.ibv_get_device_guid)(device)
                    }),
                })
                .collect()
        })
    }

    /// Opens the device named `name`, or the first one.
    pub fn open(&self, name: Option<&str>) -> Result<Context> {
        self.with_devices(|devices| {
            let device =
                devices.iter().find(|&&device| name.is_none_or(|name| self.name(device) == name));
            let Some(&device) = device else {
                return Err(Error::NoDevice {
                    wanted: name.map(str::to_owned),
                    present: devices.iter().map(|&device| self.name(device)).collect(),
                });
            };
            // SAFETY: `device` is an entry of the list that `with_devices` holds.
            let context = unsafe { (self.inner.functions.ibv_open_device)(device) };
            // SAFETY: a fresh context of this library, owned by nobody else, or null.
            unsafe { Context::from_raw(self.clone(), context, self.name(device)) }
                .ok_or_else(|| Error::last("ibv_open_device"))
        })?
    }

    fn name(&self, device: *mut ibv_device) -> String {
        // SAFETY: only called with entries of a held device list; the name is a string of the
        // device.
        unsafe { CStr::from_ptr((self.inner.functions.ibv_get_device_name)(device)) }
            .to_string_lossy()
            .into_owned()
    }

    /// Runs `body` over the device list and frees the list.
    fn with_devices<R>(&self, body: impl FnOnce(&[*mut ibv_device]) -> R) -> Result<R> {
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let list = unsafe { (self.inner.functions.ibv_get_device_list)(&mut count) };
        if list.is_null() {
            let error = std::io::Error::last_os_error();
            // A kernel without RDMA answers ENOSYS: that is an empty list to the caller.
            return match error.raw_os_error() {
                Some(libc::ENOSYS) => Ok(body(&[])),
                _ => Err(Error::Call { call: "ibv_get_device_list", source: error }),
            };
        }
        // SAFETY: the list holds `count` entries and stays until it is freed below.
        let result = body(unsafe { std::slice::from_raw_parts(list, count.max(0) as usize) });
        // SAFETY: `list` came from ibv_get_device_list and is not used again; opened devices
        // survive it.
        unsafe { (self.inner.functions.ibv_free_device_list)(list) };
        Ok(result)
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("path", &self.inner.path).finish()
    }
}

fn linker_error() -> String {
    // SAFETY: dlerror gives null or a string that stays until the thread's next dl call.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "unknown reason".to_owned()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_names_path_and_remedy() {
        let error = Library::load("/nonexistent/libibverbs.so.1").unwrap_err();
        assert!(error.to_string().contains("/nonexistent/libibverbs.so.1"), "{error}");
        assert!(error.remedy().contains("peerdma run"));
    }

    #[test]
    fn a_library_that_is_not_libibverbs_is_named() {
        let error = Library::load("libc.so.6").unwrap_err();
        assert!(matches!(error, Error::Symbol { symbol: "ibv_get_device_list", .. }), "{error}");
    }
}
