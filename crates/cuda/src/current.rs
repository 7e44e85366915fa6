//! The stack of contexts of each thread; the top one is current.
//!
//! It is there for functions that run at a program's exit (atexit(3), destructors of C++), which
//! free what they have on the GPU: the main thread's end takes down what has a destructor before
//! that, so the stack has none. What a thread leaves that ends with several contexts on it is lost:
//! a few bytes.

use crate::{Context, Driver, Error, Handle, Res};
use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::sync::Arc;

thread_local! {
    /// The current context; 0 for none.
    static TOP: Cell<Handle> = const { Cell::new(0) };
    /// Those below it.
    static BELOW: RefCell<ManuallyDrop<Vec<Handle>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// The current context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` where there is none; `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
pub fn current() -> Res<Arc<Context>> {
    let driver = Driver::get()?;
    match top() {
        0 => Err(Error::INVALID_CONTEXT),
        context => driver.contexts.get(context).map_err(|_| Error::CONTEXT_IS_DESTROYED),
    }
}

/// The current context, for a call that makes something in it.
///
/// # Errors
/// As [`current`], and what the context died of.
pub fn living() -> Res<Arc<Context>> {
    let context = current()?;
    context.check()?;
    Ok(context)
}

/// The handle on top of the stack, whatever became of its context; 0 for none.
pub fn top() -> Handle {
    TOP.get()
}

/// Makes a context current, above what was.
pub fn push(context: &Context) {
    let below = top();
    if below != 0 {
        BELOW.with(|all| all.borrow_mut().push(below));
    }
    TOP.set(context.handle());
}

/// Takes the current context off; its handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` where there is none.
pub fn pop() -> Res<Handle> {
    let context = top();
    if context == 0 {
        return Err(Error::INVALID_CONTEXT);
    }
    BELOW.with(|all| {
        let mut all = all.borrow_mut();
        TOP.set(all.pop().unwrap_or(0));
        if all.is_empty() {
            all.shrink_to_fit();
        }
    });
    Ok(context)
}

/// Puts another context in the place of the current one, or takes that off.
pub fn set_current(context: Option<&Context>) {
    match context {
        Some(context) => TOP.set(context.handle()),
        None => drop(pop()),
    }
}
