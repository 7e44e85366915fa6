//! Beginning and end, versions, errors.

use crate::ffi::{Error, Out, Res, put_text};
use cuda::gpu::{Gpu, found};
use std::ffi::c_char;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Version of the driver that goes with CUDA 13.5, and of the library.
const DRIVER: &str = "615.00";
const LIBRARY: &str = "13.615.00";
const CUDA: i32 = 13050;

/// How often the library was initialised and not shut down.
static SESSIONS: AtomicU32 = AtomicU32::new(0);

/// Whether calls are answered.
pub fn is_begun() -> bool {
    SESSIONS.load(SeqCst) != 0
}

/// All GPUs, whatever `CUDA_VISIBLE_DEVICES` says.
pub fn gpus() -> Res<&'static [Gpu]> {
    static GPUS: OnceLock<Vec<Gpu>> = OnceLock::new();
    if !is_begun() {
        return Err(Error::Uninitialized);
    }
    Ok(GPUS.get_or_init(|| found().into_iter().map(Gpu::new).collect()))
}

fn begin() -> Res {
    SESSIONS.fetch_add(1, SeqCst);
    if gpus()?.is_empty() {
        SESSIONS.fetch_sub(1, SeqCst);
        return Err(Error::DriverNotLoaded);
    }
    Ok(())
}

api! {
    fn nvmlInit() {
        begin()
    }

    fn nvmlInit_v2() {
        begin()
    }

    fn nvmlInitWithFlags(_flags: u32) {
        begin()
    }

    fn nvmlShutdown() {
        let one_less = |sessions: u32| sessions.checked_sub(1);
        SESSIONS.fetch_update(SeqCst, SeqCst, one_less).map(drop).map_err(|_| Error::Uninitialized)
    }

    fn nvmlSystemGetDriverVersion(text: Out<u8>, len: u32) {
        gpus()?;
        put_text(text, len, DRIVER)
    }

    fn nvmlSystemGetNVMLVersion(text: Out<u8>, len: u32) {
        put_text(text, len, LIBRARY)
    }

    fn nvmlSystemGetCudaDriverVersion(version: Out<i32>) {
        version.put(CUDA)
    }

    fn nvmlSystemGetCudaDriverVersion_v2(version: Out<i32>) {
        version.put(CUDA)
    }
}

/// Description of a code.
// SAFETY: the one function of this name in the library, which is that of NVML's ABI.
#[unsafe(no_mangle)]
pub extern "C" fn nvmlErrorString(code: u32) -> *const c_char {
    let text = match code {
        0 => c"Success",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        13 => c"Function Not Found",
        25 => c"Argument Version Mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}
