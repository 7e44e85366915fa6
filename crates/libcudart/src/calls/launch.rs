//! What programs of nvcc call as they are loaded, and kernels: their names are kept, and a launch
//! is refused by name.

use crate::error::{Error, Res};
use crate::ffi::{Out, Text};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// `dim3`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dim3 {
    x: u32,
    y: u32,
    z: u32,
}

/// What stands between `<<<` and `>>>`.
#[derive(Clone, Copy)]
struct Configuration {
    grid: Dim3,
    block: Dim3,
    shared_bytes: u64,
    stream: u64,
}

/// `cudaChannelFormatDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Channels {
    bits: [i32; 4],
    kind: u32,
}

/// Kernels by the addresses of the functions that stand for them on the host.
static KERNELS: Mutex<Option<HashMap<u64, String>>> = Mutex::new(None);

thread_local! {
    static CONFIGURATIONS: RefCell<Vec<Configuration>> = const { RefCell::new(Vec::new()) };
}

fn with_kernels<T>(use_them: impl FnOnce(&mut HashMap<u64, String>) -> T) -> T {
    let mut kernels = KERNELS.lock().unwrap_or_else(PoisonError::into_inner);
    use_them(kernels.get_or_insert_default())
}

/// Refuses a launch.
fn refuse(function: u64) -> Res {
    let name = with_kernels(|kernels| kernels.get(&function).cloned());
    let name = name.unwrap_or_else(|| format!("at {function:#x}"));
    cuda::log::tell_once(format_args!(
        "the kernel {name} is not executed (cudaErrorNotSupported): the software GPU copies and \
         fills memory, and computes nothing"
    ));
    Err(Error::NOT_SUPPORTED)
}

// What follows the function are sizes of grid and block, arguments of the kernel and the stream.
api! {
    fn cudaLaunchKernel(function: u64) {
        refuse(function)
    }

    fn cudaLaunchKernel_ptsz(function: u64) {
        refuse(function)
    }

    fn cudaLaunchCooperativeKernel(function: u64) {
        refuse(function)
    }

    fn cudaLaunchCooperativeKernel_ptsz(function: u64) {
        refuse(function)
    }

    fn cudaLaunchKernelExC(_config: u64, function: u64) {
        refuse(function)
    }

    fn cudaLaunchKernelExC_ptsz(_config: u64, function: u64) {
        refuse(function)
    }
}

/// The image's address is its handle.
pub extern "C" fn __cudaRegisterFatBinary(image: u64) -> u64 {
    image
}

pub extern "C" fn __cudaRegisterFatBinaryEnd(_image: u64) {}

pub extern "C" fn __cudaUnregisterFatBinary(_image: u64) {}

/// A kernel. What follows its name are bounds that its author has set.
pub extern "C" fn __cudaRegisterFunction(_image: u64, function: u64, _device: u64, name: Text) {
    let Ok(name) = name.get() else { return };
    with_kernels(|kernels| kernels.insert(function, name));
}

/// A variable of the device's, which nothing here can read or write.
pub extern "C" fn __cudaRegisterVar() {}

pub extern "C" fn __cudaRegisterHostVar() {}

pub extern "C" fn __cudaRegisterManagedVar() {
    cuda::log::say_once("__managed__ variables are not there");
}

pub extern "C" fn __cudaRegisterUnifiedTable() {}

/// That an image is ready.
pub extern "C" fn __cudaInitModule(_image: u64) -> i8 {
    1
}

pub extern "C" fn __cudaPushCallConfiguration(
    grid: Dim3,
    block: Dim3,
    shared_bytes: u64,
    stream: u64,
) -> u32 {
    crate::ffi::contained(|| {
        let new = Configuration { grid, block, shared_bytes, stream };
        let pushed = CONFIGURATIONS.try_with(|all| all.borrow_mut().push(new));
        pushed.map_err(|_| Error::MISSING_CONFIGURATION)
    })
}

api! {
    fn __cudaPopCallConfiguration(
        grid: Out<Dim3>, block: Out<Dim3>, shared_bytes: Out<u64>, stream: Out<u64>,
    ) {
        let last = CONFIGURATIONS.try_with(|all| all.borrow_mut().pop()).ok().flatten();
        let last = last.ok_or(Error::MISSING_CONFIGURATION)?;
        grid.put(last.grid)?;
        block.put(last.block)?;
        shared_bytes.put(last.shared_bytes)?;
        stream.put(last.stream)
    }
}

pub extern "C" fn cudaCreateChannelDesc(x: i32, y: i32, z: i32, w: i32, kind: u32) -> Channels {
    Channels { bits: [x, y, z, w], kind }
}
