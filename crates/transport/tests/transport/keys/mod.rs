//! Keys that stand for other keys: windows, lists, and keys with block signatures.

mod indirect;
pub mod signatures;
pub mod windows;
