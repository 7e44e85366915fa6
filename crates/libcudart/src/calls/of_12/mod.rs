//! Functions that CUDA 13 has otherwise, or under another name, as CUDA 12.9 has them.

pub mod batch;
pub mod entry;
pub mod errors;
pub mod memory;
pub mod pointer;
pub mod properties;
pub mod stream;
