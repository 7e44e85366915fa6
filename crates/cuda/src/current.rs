//! The stack of contexts of each thread; the top one is current.

use crate::{Context, Error, Res};
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static STACK: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

/// The stack, unless the thread is about to end and has none any more.
fn with<T>(use_it: impl FnOnce(&mut Vec<Arc<Context>>) -> T) -> Res<T> {
    STACK.try_with(|stack| use_it(&mut stack.borrow_mut())).map_err(|_| Error::DEINITIALIZED)
}

/// The current context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` where there is none; `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
pub fn current() -> Res<Arc<Context>> {
    crate::Driver::get()?;
    let context = with(|stack| stack.last().cloned())?.ok_or(Error::INVALID_CONTEXT)?;
    if context.is_ended() { Err(Error::CONTEXT_IS_DESTROYED) } else { Ok(context) }
}

/// The top of the stack, whatever became of it.
///
/// # Errors
/// None but at the thread's end.
pub fn top() -> Res<Option<Arc<Context>>> {
    with(|stack| stack.last().cloned())
}

/// Makes a context current, above what was.
///
/// # Errors
/// None but at the thread's end.
pub fn push(context: Arc<Context>) -> Res {
    with(|stack| stack.push(context))
}

/// Takes the current context off.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` where there is none.
pub fn pop() -> Res<Arc<Context>> {
    with(Vec::pop)?.ok_or(Error::INVALID_CONTEXT)
}

/// Puts another context, or none, in the place of the current one.
///
/// # Errors
/// None but at the thread's end.
pub fn set_current(context: Option<Arc<Context>>) -> Res {
    with(|stack| {
        stack.pop();
        stack.extend(context);
    })
}
