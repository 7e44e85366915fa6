//! Handles: what a program holds of a context, a stream, an event, a pool. A number that looks like
//! an address, is looked up at each use, and never used twice.

use crate::{Error, Res, may_make};
use engine_thread::lock;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// A handle as C has it.
pub type Handle = u64;

/// No handle's number is below; no mapping of a process lies here either, on the machines that run
/// this.
const FIRST: u64 = 0x6fcd_0000_0000_0000;
/// Between two handles.
const STEP: u64 = 64;

/// A handle that nobody had.
pub(crate) fn next() -> Handle {
    static NEXT: AtomicU64 = AtomicU64::new(FIRST);
    NEXT.fetch_add(STEP, Relaxed)
}

/// Objects of one kind by their handles.
#[derive(Debug)]
pub struct Handles<T> {
    objects: Mutex<HashMap<Handle, Arc<T>>>,
}

impl<T> Default for Handles<T> {
    fn default() -> Handles<T> {
        Handles { objects: Mutex::default() }
    }
}

impl<T> Handles<T> {
    /// Adds an object that `make` builds knowing its handle.
    ///
    /// # Errors
    /// `CUDA_ERROR_OUT_OF_MEMORY` where the system has none.
    pub fn add(&self, make: impl FnOnce(Handle) -> T) -> Res<(Handle, Arc<T>)> {
        may_make()?;
        let handle = next();
        let object = Arc::new(make(handle));
        let mut objects = lock(&self.objects);
        objects.try_reserve(1).map_err(|_| Error::OUT_OF_MEMORY)?;
        objects.insert(handle, object.clone());
        Ok((handle, object))
    }

    /// The object of a handle; `CUDA_ERROR_INVALID_HANDLE` where there is none.
    pub fn get(&self, handle: Handle) -> Res<Arc<T>> {
        lock(&self.objects).get(&handle).cloned().ok_or(Error::INVALID_HANDLE)
    }

    /// Takes an object out; as [`Handles::get`].
    pub fn remove(&self, handle: Handle) -> Res<Arc<T>> {
        lock(&self.objects).remove(&handle).ok_or(Error::INVALID_HANDLE)
    }

    /// All objects, in no order.
    pub fn all(&self) -> Vec<Arc<T>> {
        lock(&self.objects).values().cloned().collect()
    }

    /// Takes out those that `is_meant` says.
    pub fn remove_where(&self, is_meant: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = lock(&self.objects);
        objects.extract_if(|_, object| is_meant(object)).map(|(_, object)| object).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_is_good_until_it_is_taken_out_and_never_again() {
        let handles = Handles::default();
        let (one, _) = handles.add(|_| "one").unwrap();
        let (two, _) = handles.add(|_| "two").unwrap();
        assert_ne!(one, two);
        assert_eq!(*handles.get(one).unwrap(), "one");
        assert_eq!(handles.get(one + 1), Err(Error::INVALID_HANDLE));
        assert_eq!(*handles.remove(one).unwrap(), "one");
        assert_eq!(handles.remove(one), Err(Error::INVALID_HANDLE));
        let (three, _) = handles.add(|_| "three").unwrap();
        assert!(![one, two].contains(&three));
        assert_eq!(handles.remove_where(|name| name.starts_with('t')).len(), 2);
        assert!(handles.all().is_empty());
    }
}
