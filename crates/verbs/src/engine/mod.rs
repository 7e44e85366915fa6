//! The one process-wide state: engines, how their memory is registered, what they raise, forks.

pub(crate) mod event_sink;
pub(crate) mod fork;
pub(crate) mod given;
pub(crate) mod process;
pub(crate) mod registered;
