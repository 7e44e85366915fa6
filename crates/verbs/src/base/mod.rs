//! What every file needs: pointers from C as our objects, errno, locks that a fork finds free, the
//! environment.

pub(crate) mod acks;
pub(crate) mod baton;
#[macro_use]
pub(crate) mod env;
pub(crate) mod ffi;
pub(crate) mod fifo;
pub(crate) mod fork_lock;
pub(crate) mod fork_state;
pub(crate) mod hooks;
pub(crate) mod object;
#[cfg(feature = "sabotage")]
pub(crate) mod sabotage;
pub(crate) mod spare;
pub(crate) mod thread_end;
