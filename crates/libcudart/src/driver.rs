//! The driver's functions that the runtime is written over, found in `libcuda.so.1` at the first
//! call.
#![allow(unsafe_code, reason = "the dynamic linker, and the types of what it finds")]

use crate::error::{Error, Res, answer};
use crate::ffi::{HostFunction, In, Out, StreamCallback, Text};
use crate::shape::Shape;
use std::ffi::{CStr, c_void};
use std::mem::transmute;
use std::ptr::NonNull;
use std::sync::OnceLock;

/// A handle for another process, by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Shared(pub [u8; 64]);

/// A place of memory (`cudaMemLocation`), by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

/// The functions, with a field for each. An argument that is a reference is a place of the
/// runtime's own; the others are passed on as programs gave them.
macro_rules! functions {
    ($($name:ident ($($ty:ty),* $(,)?);)*) => {
        pub struct Driver {
            $(pub $name: extern "C" fn($($ty),*) -> u32,)*
        }

        impl Driver {
            fn load() -> Option<Driver> {
                let library = Library::open()?;
                Some(Driver {$(
                    // SAFETY: the function of this name in the driver's ABI, which takes these.
                    $name: unsafe {
                        transmute::<NonNull<c_void>, extern "C" fn($($ty),*) -> u32>(
                            library.find(concat!(stringify!($name), "\0"))?,
                        )
                    },
                )*})
            }
        }
    };
}

functions! {
    cuInit(u32);
    cuDriverGetVersion(&mut i32);
    cuGetProcAddress_v2(Text, &mut u64, i32, u64, &mut u32);
    cuDeviceGetCount(&mut i32);
    cuDeviceGetName(&mut [u8; 256], i32, i32);
    cuDeviceGetUuid_v2(&mut [u8; 16], i32);
    cuDeviceTotalMem_v2(&mut u64, i32);
    cuDeviceGetAttribute(&mut i32, i32, i32);
    cuDeviceGetPCIBusId(Out<u8>, i32, i32);
    cuDeviceGetByPCIBusId(Out<i32>, Text);
    cuDeviceCanAccessPeer(Out<i32>, i32, i32);
    cuDeviceGetP2PAttribute(Out<i32>, u32, i32, i32);
    cuDevicePrimaryCtxRetain(&mut u64, i32);
    cuDevicePrimaryCtxReset_v2(i32);
    cuDevicePrimaryCtxSetFlags_v2(i32, u32);
    cuDevicePrimaryCtxGetState(i32, &mut u32, &mut i32);
    cuDeviceGetDefaultMemPool(Out<u64>, i32);
    cuDeviceGetMemPool(Out<u64>, i32);
    cuDeviceSetMemPool(i32, u64);
    cuFlushGPUDirectRDMAWrites(u32, u32);
    cuCtxGetCurrent(&mut u64);
    cuCtxSetCurrent(u64);
    cuCtxGetDevice(&mut i32);
    cuCtxGetApiVersion(u64, &mut u32);
    cuCtxGetFlags(&mut u32);
    cuCtxSynchronize();
    cuCtxGetLimit(Out<u64>, u32);
    cuCtxSetLimit(u32, u64);
    cuCtxGetCacheConfig(Out<u32>);
    cuCtxSetCacheConfig(u32);
    cuCtxGetSharedMemConfig(Out<u32>);
    cuCtxSetSharedMemConfig(u32);
    cuCtxGetStreamPriorityRange(Out<i32>, Out<i32>);
    cuCtxResetPersistingL2Cache();
    cuCtxEnablePeerAccess(u64, u32);
    cuCtxDisablePeerAccess(u64);
    cuMemGetInfo_v2(Out<u64>, Out<u64>);
    cuMemAlloc_v2(Out<u64>, u64);
    cuMemAllocPitch_v2(&mut u64, &mut u64, u64, u64, u32);
    cuMemFree_v2(u64);
    cuMemHostAlloc(Out<u64>, u64, u32);
    cuMemFreeHost(u64);
    cuMemHostRegister_v2(u64, u64, u32);
    cuMemHostUnregister(u64);
    cuMemHostGetDevicePointer_v2(Out<u64>, u64, u32);
    cuMemHostGetFlags(Out<u32>, u64);
    cuMemAllocManaged(Out<u64>, u64, u32);
    cuMemAdvise(u64, u64, u32, i32);
    cuMemAdvise_v2(u64, u64, u32, Location);
    cuMemPrefetchAsync(u64, u64, i32, u64);
    cuMemPrefetchAsync_v2(u64, u64, Location, u32, u64);
    cuMemRangeGetAttribute(Out<u8>, u64, u32, u64, u64);
    cuPointerGetAttribute(&mut u64, u32, u64);
    cuMemcpy3D_v2(&Shape);
    cuMemcpy3D_v2_ptds(&Shape);
    cuMemcpy3DAsync_v2(&Shape, u64);
    cuMemsetD2D8_v2(u64, u64, u8, u64, u64);
    cuMemsetD2D8_v2_ptds(u64, u64, u8, u64, u64);
    cuMemsetD2D8Async(u64, u64, u8, u64, u64, u64);
    cuStreamCreateWithPriority(Out<u64>, u32, i32);
    cuStreamDestroy_v2(u64);
    cuStreamQuery(u64);
    cuStreamSynchronize(u64);
    cuStreamWaitEvent(u64, u64, u32);
    cuStreamGetFlags(u64, Out<u32>);
    cuStreamGetPriority(u64, Out<i32>);
    cuStreamGetId(u64, Out<u64>);
    cuStreamGetDevice(u64, Out<i32>);
    cuStreamIsCapturing(u64, Out<u32>);
    cuStreamAttachMemAsync(u64, u64, u64, u32);
    cuStreamAddCallback(u64, StreamCallback, u64, u32);
    cuStreamCopyAttributes(u64, u64);
    cuThreadExchangeStreamCaptureMode(Out<u32>);
    cuLaunchHostFunc(u64, HostFunction, u64);
    cuEventCreate(Out<u64>, u32);
    cuEventDestroy_v2(u64);
    cuEventRecordWithFlags(u64, u64, u32);
    cuEventQuery(u64);
    cuEventSynchronize(u64);
    cuEventElapsedTime(Out<f32>, u64, u64);
    cuMemAllocAsync(Out<u64>, u64, u64);
    cuMemAllocFromPoolAsync(Out<u64>, u64, u64, u64);
    cuMemFreeAsync(u64, u64);
    cuMemPoolCreate(Out<u64>, In<u8>);
    cuMemPoolDestroy(u64);
    cuMemPoolTrimTo(u64, u64);
    cuMemPoolGetAttribute(u64, u32, Out<u8>);
    cuMemPoolSetAttribute(u64, u32, In<u8>);
    cuMemPoolSetAccess(u64, In<u8>, u64);
    cuMemPoolGetAccess(Out<u32>, u64, In<u8>);
    cuIpcGetMemHandle(Out<Shared>, u64);
    cuIpcOpenMemHandle_v2(Out<u64>, Shared, u32);
    cuIpcCloseMemHandle(u64);
    cuIpcGetEventHandle(Out<Shared>, u64);
    cuIpcOpenEventHandle(Out<u64>, Shared);
}

/// The driver, whether it is begun or not.
pub fn loaded() -> Res<&'static Driver> {
    static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
    DRIVER.get_or_init(Driver::load).as_ref().ok_or(Error::INSUFFICIENT_DRIVER)
}

/// The driver, begun.
///
/// # Errors
/// `cudaErrorInsufficientDriver` where there is none, `cudaErrorNoDevice` where it has no device,
/// `cudaErrorInitializationError` in a child of fork(2).
pub fn driver() -> Res<&'static Driver> {
    let driver = loaded()?;
    answer((driver.cuInit)(0))?;
    Ok(driver)
}

/// `libcuda.so.1`, which stays.
struct Library(NonNull<c_void>);

impl Library {
    fn open() -> Option<Library> {
        // SAFETY: a string of C.
        let found = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        let library = NonNull::new(found).map(Library);
        if library.is_none() {
            cuda::log::say("there is no libcuda.so.1: cudaErrorInsufficientDriver");
        }
        library
    }

    /// A function, by its name with a zero behind it.
    fn find(&self, name: &str) -> Option<NonNull<c_void>> {
        let name = CStr::from_bytes_until_nul(name.as_bytes()).ok()?;
        // SAFETY: a library that is open, and a string of C.
        let found = NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) });
        if found.is_none() {
            cuda::log::say(format_args!("libcuda.so.1 has no {}", name.to_string_lossy()));
        }
        found
    }
}
