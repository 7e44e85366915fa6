//! The PCI front end: a software ConnectX that stock Linux mlx5_core and mlx5_ib drive, over the same `hca` as the in-process
//! library.
//!
//! It holds formats and no protocol: registers, the command interface, event, completion and work queues as the driver
//! lays them out in its memory become values for [`hca::Device`], and completions and events become entries. Everything that a
//! driver writes is checked; a wrong command gets the status that the reference manual gives it, a wrong request ends its
//! queue pair. What is not built is not offered: its capability is 0 and its command is unknown.
//!
//! Source: the Adapters Programmer's Reference Manual (PRM) and, as facts, the kernel's `mlx5_ifc.h`, `device.h` and `qp.h`.
#![forbid(unsafe_code)]

mod alarm;
mod bits;
mod bsf;
mod budget;
mod buffer;
mod bus;
mod caps;
mod command;
mod counter_set;
mod cq;
mod cqe;
mod create;
mod data_direct;
mod dump;
mod eq;
mod firmware;
mod function;
mod general_object;
mod init_segment;
mod key_list;
mod ledger;
mod mailbox;
mod memic;
mod memory_copy;
mod mkc;
mod mkey;
mod moderation;
mod modify;
mod modify_cq;
mod multicast;
mod names;
mod nic;
mod objects;
mod opcode;
mod page_fault;
mod pages;
mod pci;
mod port;
mod psv;
mod qp;
mod query;
mod report;
mod request;
mod send;
mod share;
mod sparse;
mod srq;
mod stride;
mod tags;
mod translation;
mod uar;
mod uctx;
mod umr;
mod user_memory;
mod work_queue;
mod wqe;

pub use bus::{Bus, Dma};
pub use data_direct::DataDirect;
pub use function::{BAR_LEN, ConnectX, DEVICE, MSIX_PENDING, MSIX_TABLE, VECTORS, VENDOR};
pub use pci::Slots;
