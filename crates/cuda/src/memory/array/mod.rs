//! CUDA arrays: memory of a GPU without addresses, which is copied from and to by places in it.

mod layout;

pub use layout::{Layout, Part, Shape};

use super::physical::Physical;
use crate::gpu::attribute;
use crate::sys::{Domain, Place};
use crate::{Context, Driver, Error, Handle, Res};

/// An array.
pub struct Array {
    context: Handle,
    layout: Layout,
    physical: Physical,
}

impl Array {
    /// A new array of a context's GPU, all zero; the handle.
    ///
    /// # Errors
    /// As [`Layout::of`]; `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn create(driver: &Driver, context: &Context, shape: Shape) -> Res<Handle> {
        let gpu = context.gpu();
        let most =
            |number| attribute(gpu, number).map_or(0, |most| u64::try_from(most).unwrap_or(0));
        let layout = Layout::of(shape, most)?;
        let physical = Physical::alloc(gpu, layout.bytes(), Domain::Vram)?;
        let array = Array { context: context.handle(), layout, physical };
        Ok(driver.arrays.add(|_| array)?.0)
    }

    /// Gives one back, when all that its context was given to do is done.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub fn destroy(driver: &Driver, handle: Handle) -> Res {
        let array = driver.arrays.remove(handle)?;
        if let Ok(context) = driver.contexts.get(array.context) {
            context.queues.wait_all();
        }
        Ok(())
    }

    /// The handle of its context.
    pub fn context(&self) -> Handle {
        self.context
    }

    /// How it lies in memory.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// `len` of its bytes, as the driver reaches them.
    pub(super) fn place(&self, offset: u64, len: u64) -> Res<Place> {
        let end = offset.checked_add(len).filter(|end| *end <= self.layout.bytes());
        let part = end.and_then(|end| self.physical.place().part(offset..end));
        part.ok_or(Error::INVALID_VALUE)
    }
}
