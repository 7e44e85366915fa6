//! Modules, libraries and their kernels: loaded and found, never launched.

use crate::ffi::{In, Out, Text};
use cuda::module::Image;
use cuda::{Driver, Error, Handle, current, living};

/// Loads an image for the current context.
pub fn load(out: Out<Handle>, image: u64) -> cuda::Res {
    let (driver, out, context) = (Driver::get()?, out.checked()?, living()?);
    let module = driver.modules.load(context.handle(), Image::at(image)?)?;
    driver.made_in(&context)?;
    out.put(module)
}

/// Loads an image for all contexts.
fn load_library(out: Out<Handle>, image: u64) -> cuda::Res {
    let (driver, out) = (Driver::get()?, out.checked()?);
    out.put(driver.modules.load(0, Image::at(image)?)?)
}

/// The image in a file, followed by a zero: PTX is a string.
fn with_file(name: Text, use_it: impl FnOnce(u64) -> cuda::Res) -> cuda::Res {
    let read = std::fs::read(name.get()?).map_err(|error| match error.kind() {
        std::io::ErrorKind::OutOfMemory => Error::OUT_OF_MEMORY,
        _ => Error::FILE_NOT_FOUND,
    });
    let mut bytes = read?;
    bytes.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
    bytes.push(0);
    use_it(bytes.as_ptr() as u64)
}

fn function(out: Out<Handle>, module: Handle, name: Text) -> cuda::Res {
    let (driver, out) = (Driver::get()?, out.checked()?);
    out.put(driver.modules.function(module, &name.get()?)?)
}

api! {
    fn cuModuleLoad(module: Out<Handle>, file: Text) {
        with_file(file, |image| load(module, image))
    }

    fn cuModuleLoadData(module: Out<Handle>, image: u64) {
        load(module, image)
    }

    fn cuModuleLoadDataEx(
        module: Out<Handle>, image: u64, _count: u32, _options: In<u32>, _values: In<u64>,
    ) {
        load(module, image)
    }

    fn cuModuleLoadFatBinary(module: Out<Handle>, image: u64) {
        load(module, image)
    }

    fn cuModuleUnload(module: Handle) {
        Driver::get()?.modules.unload(module)
    }

    fn cuModuleGetFunction(out: Out<Handle>, module: Handle, name: Text) {
        function(out, module, name)
    }

    fn cuModuleGetFunctionCount(count: Out<u32>, module: Handle) {
        count.put(Driver::get()?.modules.get(module)?.names().len() as u32)
    }

    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        // lazily, which nobody can tell from eagerly here
        mode.put(2)
    }

    fn cuLibraryLoadData(
        library: Out<Handle>, image: u64, _jit: In<u32>, _jit_values: In<u64>, _jit_count: u32,
        _options: In<u32>, _values: In<u64>, _count: u32,
    ) {
        load_library(library, image)
    }

    fn cuLibraryLoadFromFile(
        library: Out<Handle>, file: Text, _jit: In<u32>, _jit_values: In<u64>, _jit_count: u32,
        _options: In<u32>, _values: In<u64>, _count: u32,
    ) {
        with_file(file, |image| load_library(library, image))
    }

    fn cuLibraryUnload(library: Handle) {
        Driver::get()?.modules.unload(library)
    }

    fn cuLibraryGetKernel(kernel: Out<Handle>, library: Handle, name: Text) {
        function(kernel, library, name)
    }

    fn cuLibraryGetModule(module: Out<Handle>, library: Handle) {
        Driver::get()?.modules.get(library)?;
        current()?;
        module.put(library)
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, library: Handle) {
        count.put(Driver::get()?.modules.get(library)?.names().len() as u32)
    }

    fn cuKernelGetFunction(function: Out<Handle>, kernel: Handle) {
        Driver::get()?.modules.of(kernel)?;
        function.put(kernel)
    }

    fn cuKernelGetLibrary(library: Out<Handle>, kernel: Handle) {
        library.put(Driver::get()?.modules.of(kernel)?.module())
    }

    fn cuFuncGetModule(module: Out<Handle>, function: Handle) {
        module.put(Driver::get()?.modules.of(function)?.module())
    }

    fn cuFuncSetCacheConfig(function: Handle, _config: u32) {
        Driver::get()?.modules.of(function).map(drop)
    }

    fn cuFuncSetAttribute(function: Handle, _attribute: u32, _value: i32) {
        Driver::get()?.modules.of(function).map(drop)
    }

    fn cuFuncLoad(function: Handle) {
        Driver::get()?.modules.of(function).map(drop)
    }

    fn cuLaunch(function: Handle) {
        Driver::get()?.modules.launch(function)
    }

    fn cuLaunchKernelEx(_config: In<u8>, function: Handle, _p: In<u64>, _extra: In<u64>) {
        Driver::get()?.modules.launch(function)
    }

    fn cuLaunchKernelEx_ptsz(_config: In<u8>, function: Handle, _p: In<u64>, _extra: In<u64>) {
        Driver::get()?.modules.launch(function)
    }

    // what follows are sizes of grid and block, the stream, and arguments of the kernel
    fn cuLaunchKernel(function: Handle) {
        Driver::get()?.modules.launch(function)
    }

    fn cuLaunchKernel_ptsz(function: Handle) {
        Driver::get()?.modules.launch(function)
    }

    fn cuLaunchCooperativeKernel(function: Handle) {
        Driver::get()?.modules.launch(function)
    }

    fn cuLaunchCooperativeKernel_ptsz(function: Handle) {
        Driver::get()?.modules.launch(function)
    }
}
