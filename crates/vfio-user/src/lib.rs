//! PCI functions served to a virtual machine: the server side of the vfio-user protocol, as QEMU's
//! `-device vfio-user-pci` (10.1 and later) speaks it.
//!
//! A [`Function`] is what a device does; [`serve`] puts it on a socket. Its [`Host`] is what it
//! reaches: the guest's memory as a [`umem::DmaSpace`] under the addresses that the guest's driver
//! hands out, and interrupts. A function lives as long as its server: a client that goes (a machine
//! that ends, or is killed) leaves it reset and with an empty memory, and the next one finds it so.
//! Every byte from a client is checked: a hostile one gets an errno or is hung up on.
//!
//! The published crate `vfio_user` serves one client per run and lacks DMA_READ and DMA_WRITE, and
//! its memory is plain mappings: no quiescing before an unmap is answered, no guard against a
//! client that truncates them.
//!
//! Source: the protocol's specification, `docs/interop/vfio-user.rst` of QEMU; constants of VFIO
//! itself are those of `linux/vfio.h`, numbers of PCI those of the PCI Express Base Specification
//! 6.0.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod channel;
mod client;
mod config;
mod function;
mod host;
mod interrupts;
mod map;
mod neighbours;
mod posted;
pub mod protocol;
mod server;
mod session;

pub use function::{Bar, BarKind, Description, DescriptionError, Function, Msix, PciIdentity};
pub use host::Host;
pub use neighbours::Neighbours;
pub use server::{Server, serve};
