//! The guest's machine as the device sees it: its memory, what is remembered for it, and when.

pub(crate) mod alarm;
pub(crate) mod budget;
pub(crate) mod buffer;
pub(crate) mod bus;
pub(crate) mod report;
pub(crate) mod share;
pub(crate) mod sparse;
pub(crate) mod table;
pub(crate) mod user_memory;
