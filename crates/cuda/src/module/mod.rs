//! Modules: images with kernels, whose names are read and which are not executed.

mod elf;
mod image;

pub use image::Image;

use crate::{Error, Handle, Handles, Res, log};
use engine_thread::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A loaded image.
pub struct Module {
    handle: Handle,
    /// The context that it was loaded in; 0 for one of all contexts (`CUlibrary`).
    context: Handle,
    image: Image,
    functions: Mutex<HashMap<String, Handle>>,
}

/// A kernel of a module.
pub struct Function {
    module: Handle,
    name: String,
}

/// The modules of a process and their kernels.
#[derive(Default)]
pub struct Modules {
    modules: Handles<Module>,
    functions: Handles<Function>,
}

impl Modules {
    /// Loads an image.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where the system has none.
    pub fn load(&self, context: Handle, image: Image) -> Res<Handle> {
        let functions = Mutex::default();
        Ok(self.modules.add(|handle| Module { handle, context, image, functions })?.0)
    }

    /// Unloads a module.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub fn unload(&self, module: Handle) -> Res {
        self.modules.remove(module)?;
        drop(self.functions.remove_where(|function| function.module == module));
        Ok(())
    }

    /// Forgets what was loaded in a context.
    pub fn end(&self, context: Handle) {
        for module in self.modules.remove_where(|module| module.context == context) {
            drop(self.functions.remove_where(|function| function.module == module.handle));
        }
    }

    /// A module.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub fn get(&self, module: Handle) -> Res<Arc<Module>> {
        self.modules.get(module)
    }

    /// A kernel of a module, by its name; the same handle each time.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`; `CUDA_ERROR_NOT_FOUND` where the image has none of this name.
    pub fn function(&self, module: Handle, name: &str) -> Res<Handle> {
        let found = self.modules.get(module)?;
        if !found.image.has(name) {
            return Err(Error::NOT_FOUND);
        }
        let mut functions = lock(&found.functions);
        if let Some(known) = functions.get(name) {
            return Ok(*known);
        }
        let new = self.functions.add(|_| Function { module, name: name.to_owned() })?.0;
        functions.insert(name.to_owned(), new);
        Ok(new)
    }

    /// A kernel.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub fn of(&self, function: Handle) -> Res<Arc<Function>> {
        self.functions.get(function)
    }

    /// Refuses to launch a kernel, and says so in a line, whatever `PEERDMA_LOG` is.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED`; `CUDA_ERROR_INVALID_HANDLE`.
    pub fn launch(&self, function: Handle) -> Res {
        let function = self.of(function)?;
        log::tell_once(format_args!(
            "the kernel {} is not executed (CUDA_ERROR_NOT_SUPPORTED): the software GPU copies and \
             fills memory, and computes nothing",
            function.name
        ));
        Err(Error::NOT_SUPPORTED)
    }
}

impl Module {
    /// Names of its kernels, as far as they are known.
    pub fn names(&self) -> Vec<String> {
        self.image.names()
    }
}

impl Function {
    /// Its module.
    pub fn module(&self) -> Handle {
        self.module
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_by_name_and_never_launched() {
        let modules = Modules::default();
        let image = Image::of_ptx(".visible .entry fill(\n.param .u64 a)\n{ ret; }");
        let module = modules.load(64, image).unwrap();
        let fill = modules.function(module, "fill").unwrap();
        assert_eq!(modules.function(module, "fill"), Ok(fill));
        assert_eq!(modules.function(module, "copy"), Err(Error::NOT_FOUND));
        assert_eq!(modules.launch(fill), Err(Error::NOT_SUPPORTED));
        assert_eq!(modules.of(fill).unwrap().name(), "fill");
        modules.end(64);
        assert_eq!(modules.launch(fill), Err(Error::INVALID_HANDLE));
        assert_eq!(modules.function(module, "fill"), Err(Error::INVALID_HANDLE));
    }
}
