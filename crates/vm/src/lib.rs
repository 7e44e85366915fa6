//! Small virtual machines for programs of this machine: a QEMU that can take vfio-user functions, a
//! kernel with modules, a RAM disk of busybox and whatever programs are wanted, and the guest that
//! they make.
//!
//! It promises to need neither root nor hardware virtualisation, and to install nothing: what this
//! machine lacks is fetched from its Debian mirror, unpacked into a folder that the caller names
//! and kept there.
//!
//! Start at [`Guest::boot`], which takes a [`Machine`] of a [`Kernel`] and a [`RamDisk`];
//! [`Guest::run`] runs a shell script in it.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

pub mod apt;
mod command;
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

pub use command::find_program;
pub use error::{Error, Result};
pub use guest::{AGENT, Guest, RAN_AND_IS_LATE};
pub use kernel::Kernel;
pub use machine::{Machine, function};
pub use qemu::Qemu;
pub use ram_disk::RamDisk;
pub use rdma::{rdma_disk, rdma_gpu_disk};
pub use store::Store;
