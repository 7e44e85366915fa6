//! What a queue pair does in its turn: sends, changes of keys, copies and tags.

pub(crate) mod address;
pub(crate) mod key_change;
pub(crate) mod memory_copy;
pub(crate) mod send;
pub(crate) mod tags;
pub(crate) mod umr;
