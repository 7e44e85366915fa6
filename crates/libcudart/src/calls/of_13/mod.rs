//! Functions that CUDA 12 has otherwise, under another name or not at all, as CUDA 13.5 has them.

pub mod batch;
pub mod entry;
pub mod errors;
pub mod memory;
pub mod pointer;
pub mod pool;
pub mod properties;
pub mod stream;
