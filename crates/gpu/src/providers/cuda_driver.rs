//! The CUDA driver's library, loaded when it is asked for: the few functions that allocate, copy
//! and export, as safe calls. All unsafe code of the CUDA provider is here.
#![allow(unsafe_code, reason = "a C library loaded at run time")]

use crate::Error;
use rustix::io::Errno;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::fd::{FromRawFd, OwnedFd};

/// A device by its number (`CUdevice`).
pub(super) type Device = c_int;

/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
const DMA_BUF_SUPPORTED: c_int = 124;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: c_int = 1;
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
const SYNC_MEMOPS: c_int = 6;

/// Whether an export's mapping goes through BAR1 in any case
/// (`CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`, CUDA 12.8), or as the driver chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mapping {
    Pcie = 1,
    Default = 0,
}

type Code = c_int;

/// Declares the functions, by their names in the library: those of version 2 have the suffix that
/// the header's macros add.
macro_rules! functions {
    ($($field:ident = $name:literal ($($argument:ty),*);)*) => {
        struct Functions { $($field: unsafe extern "C" fn($($argument),*) -> Code,)* }

        impl Functions {
            fn find(library: &Library) -> Result<Functions, Error> {
                Ok(Functions { $($field: {
                    let function = library.symbol($name)?;
                    // SAFETY: the function of this name has this signature in the driver's ABI
                    // (cuda.h).
                    unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) -> Code,
                        >(function)
                    }
                },)* })
            }
        }
    };
}

functions! {
    init = c"cuInit" (c_uint);
    count = c"cuDeviceGetCount" (*mut c_int);
    device = c"cuDeviceGet" (*mut Device, c_int);
    device_name = c"cuDeviceGetName" (*mut c_char, c_int, Device);
    bus_id = c"cuDeviceGetPCIBusId" (*mut c_char, c_int, Device);
    attribute = c"cuDeviceGetAttribute" (*mut c_int, c_int, Device);
    retain = c"cuDevicePrimaryCtxRetain" (*mut *mut c_void, Device);
    release = c"cuDevicePrimaryCtxRelease_v2" (Device);
    push = c"cuCtxPushCurrent_v2" (*mut c_void);
    pop = c"cuCtxPopCurrent_v2" (*mut *mut c_void);
    alloc = c"cuMemAlloc_v2" (*mut u64, usize);
    free = c"cuMemFree_v2" (u64);
    set_attribute = c"cuPointerSetAttribute" (*const c_void, c_int, u64);
    to_device = c"cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    to_host = c"cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
    export = c"cuMemGetHandleForAddressRange" (*mut c_void, u64, usize, c_int, u64);
    error_name = c"cuGetErrorName" (Code, *mut *const c_char);
}

/// A loaded library; never unloaded, for the driver keeps threads.
struct Library {
    name: CString,
    handle: *mut c_void,
}

impl Library {
    fn load(name: &str) -> Result<Library, Error> {
        let refused = |said: String| Error::NoLibrary { name: name.to_owned(), said };
        let owned = CString::new(name).map_err(|error| refused(error.to_string()))?;
        // SAFETY: a string of C; the library's constructors are the driver's own.
        let handle = unsafe { libc::dlopen(owned.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // SAFETY: dlerror answers a string of C after a failure, which lasts until this
            // thread's next call.
            let said = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(refused(said.to_string_lossy().into_owned()));
        }
        Ok(Library { name: owned, handle })
    }

    fn symbol(&self, name: &'static CStr) -> Result<*mut c_void, Error> {
        // SAFETY: a handle that dlopen gave, and a string of C.
        let symbol = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if symbol.is_null() {
            let library = self.name.to_string_lossy().into_owned();
            return Err(Error::NoFunction { library, name: name.to_str().unwrap_or_default() });
        }
        Ok(symbol)
    }
}

/// The driver, initialised.
pub(super) struct Driver {
    functions: Functions,
}

impl Driver {
    pub(super) fn load(library: &str) -> Result<Driver, Error> {
        let functions = Functions::find(&Library::load(library)?)?;
        let driver = Driver { functions };
        // SAFETY: flags must be 0.
        driver.check("cuInit", unsafe { (driver.functions.init)(0) })?;
        Ok(driver)
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), Error> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: it stores a pointer to a constant string, or null for a code that it does not
        // know.
        unsafe { (self.functions.error_name)(code, &raw mut name) };
        let name = if name.is_null() {
            format!("error {code}")
        } else {
            // SAFETY: see above.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        };
        Err(Error::Cuda { call, name })
    }

    pub(super) fn devices(&self) -> Result<Vec<Device>, Error> {
        let mut count = 0;
        // SAFETY: stores one integer.
        self.check("cuDeviceGetCount", unsafe { (self.functions.count)(&raw mut count) })?;
        let device = |ordinal| {
            let mut device = 0;
            // SAFETY: stores one integer.
            let code = unsafe { (self.functions.device)(&raw mut device, ordinal) };
            self.check("cuDeviceGet", code).map(|()| device)
        };
        (0..count).map(device).collect()
    }

    /// A string about a device that a function writes into a buffer.
    fn text(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(*mut c_char, c_int, Device) -> Code,
        device: Device,
    ) -> Result<String, Error> {
        let mut text = [0u8; 256];
        // SAFETY: it writes a terminated string of at most the length given.
        let code = unsafe { function(text.as_mut_ptr().cast(), text.len() as c_int, device) };
        self.check(call, code)?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }

    pub(super) fn name(&self, device: Device) -> Result<String, Error> {
        self.text("cuDeviceGetName", self.functions.device_name, device)
    }

    /// `domain:bus:device.function`.
    pub(super) fn bus_id(&self, device: Device) -> Result<String, Error> {
        self.text("cuDeviceGetPCIBusId", self.functions.bus_id, device)
    }

    pub(super) fn exports_dmabufs(&self, device: Device) -> Result<bool, Error> {
        let mut value = 0;
        // SAFETY: stores one integer.
        let code = unsafe { (self.functions.attribute)(&raw mut value, DMA_BUF_SUPPORTED, device) };
        self.check("cuDeviceGetAttribute", code).map(|()| value != 0)
    }
}

/// A device's primary context, held.
pub(super) struct Context {
    driver: std::sync::Arc<Driver>,
    device: Device,
    context: *mut c_void,
}

// SAFETY: a context may be current to several threads at once (CUDA 4.0 on); here it is so only
// during a call.
unsafe impl Send for Context {}
// SAFETY: see above.
unsafe impl Sync for Context {}

impl Context {
    pub(super) fn retain(driver: std::sync::Arc<Driver>, device: Device) -> Result<Context, Error> {
        let mut context = std::ptr::null_mut();
        // SAFETY: stores the context.
        let code = unsafe { (driver.functions.retain)(&raw mut context, device) };
        driver.check("cuDevicePrimaryCtxRetain", code)?;
        Ok(Context { driver, device, context })
    }

    /// Makes a call with the context current to this thread, and what was current before
    /// afterwards.
    fn call(
        &self,
        name: &'static str,
        function: impl FnOnce(&Functions) -> Code,
    ) -> Result<(), Error> {
        let functions = &self.driver.functions;
        // SAFETY: a context that is retained.
        let code = unsafe { (functions.push)(self.context) };
        self.driver.check("cuCtxPushCurrent", code)?;
        let code = function(functions);
        let mut old = std::ptr::null_mut();
        // SAFETY: takes off what was pushed above.
        unsafe { (functions.pop)(&raw mut old) };
        self.driver.check(name, code)
    }

    /// Device memory; give it back by [`Context::free`].
    pub(super) fn alloc(&self, len: usize) -> Result<u64, Error> {
        let mut address = 0;
        // SAFETY: stores the address.
        self.call("cuMemAlloc", |cuda| unsafe { (cuda.alloc)(&raw mut address, len) })?;
        Ok(address)
    }

    /// Gives memory back that [`Context::alloc`] answered. A wrong address is refused by the
    /// driver.
    pub(super) fn free(&self, address: u64) -> Result<(), Error> {
        // SAFETY: device memory; nothing of this process's is touched.
        self.call("cuMemFree", |cuda| unsafe { (cuda.free)(address) })
    }

    /// Has copies to and from the memory finished when their calls return: peers see them.
    pub(super) fn sync_copies(&self, address: u64) -> Result<(), Error> {
        let yes: c_uint = 1;
        // SAFETY: the attribute's value is an unsigned integer.
        self.call("cuPointerSetAttribute", |cuda| unsafe {
            (cuda.set_attribute)((&raw const yes).cast(), SYNC_MEMOPS, address)
        })
    }

    pub(super) fn write(&self, address: u64, src: &[u8]) -> Result<(), Error> {
        // SAFETY: reads the slice; a wrong device address is refused by the driver.
        self.call("cuMemcpyHtoD", |cuda| unsafe {
            (cuda.to_device)(address, src.as_ptr().cast(), src.len())
        })
    }

    pub(super) fn read(&self, address: u64, dst: &mut [u8]) -> Result<(), Error> {
        // SAFETY: writes the slice; a wrong device address is refused by the driver.
        self.call("cuMemcpyDtoH", |cuda| unsafe {
            (cuda.to_host)(dst.as_mut_ptr().cast(), address, dst.len())
        })
    }

    /// A dma-buf of whole host pages of device memory.
    pub(super) fn export(&self, address: u64, len: usize, how: Mapping) -> Result<OwnedFd, Error> {
        let mut fd: c_int = -1;
        // SAFETY: for this type of handle it stores a descriptor.
        self.call("cuMemGetHandleForAddressRange", |cuda| unsafe {
            (cuda.export)((&raw mut fd).cast(), address, len, DMA_BUF_FD, how as u64)
        })?;
        if fd < 0 {
            return Err(Error::System("cuMemGetHandleForAddressRange", Errno::BADF));
        }
        // SAFETY: made for us by the call.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: what `retain` held.
        unsafe { (self.driver.functions.release)(self.device) };
    }
}
