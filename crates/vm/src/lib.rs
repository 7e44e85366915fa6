//! Small virtual machines for programs of this machine: a QEMU that can take vfio-user functions, a kernel with modules, a
//! RAM disk of busybox and whatever programs are wanted, and the guest that they make.
//!
//! Needs neither root nor hardware virtualisation. What this machine lacks is fetched from its Debian mirror, unpacked into a
//! folder that the caller names and kept there; nothing is installed.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

pub mod apt;
mod cpio;
mod error;
mod gpu_driver;
mod guest;
mod headers;
mod kernel;
mod machine;
mod qemu;
mod ram_disk;
mod rdma;
mod store;

pub use error::{Error, Result};
pub use guest::{AGENT, Guest};
pub use kernel::Kernel;
pub use machine::{Machine, function};
pub use qemu::Qemu;
pub use ram_disk::{RamDisk, find_program};
pub use rdma::{rdma_disk, rdma_gpu_disk};
pub use store::Store;
