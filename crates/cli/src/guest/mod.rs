//! The commands for virtual machines: `connectx`, which serves an adapter to one that somebody
//! else starts, and `vm`, which boots one.

mod adapter;
pub mod connectx;
mod virtual_gpu;
pub mod vm;
