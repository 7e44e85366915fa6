//! The PCI front end: a software ConnectX that stock Linux mlx5_core and mlx5_ib drive, over the
//! same `hca` as the in-process library.
//!
//! It holds formats and no protocol: registers, the command interface, event, completion and work
//! queues as the driver lays them out in its memory become values for [`hca::Device`], and
//! completions and events become entries. Everything that a driver writes is checked; a wrong
//! command gets the status that the reference manual gives it, a wrong request ends its queue pair.
//! What is not built is not offered: its capability is 0 and its command is unknown.
//!
//! Source: the Adapters Programmer's Reference Manual (PRM) and, as facts, the kernel's
//! `mlx5_ifc.h`, `device.h` and `qp.h`.
#![forbid(unsafe_code)]

mod command;
mod function;
mod handlers;
mod keys;
mod layout;
mod machine;
mod nic;
mod object;
mod request;
mod work;

pub use function::connectx::{BAR_LEN, ConnectX, MSIX_PENDING, MSIX_TABLE, VECTORS};
pub use function::data_direct::DataDirect;
pub use function::pci::Slots;
pub use layout::identity::{DEVICE, VENDOR};
pub use machine::bus::{Bus, Dma};
