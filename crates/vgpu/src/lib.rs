//! A virtual GPU for machines that take vfio-user functions: device memory behind a large BAR that
//! the machine maps, and a register BAR with one engine that copies and fills, so that a driver can
//! move its buffers.
//!
//! It computes nothing and shows nothing. Its driver in the guest (`crates/vm/driver`) exports
//! buffers of this memory as dma-bufs that move and can be revoked; adapters reach them through the
//! BAR, as the guest's kernel allows. It promises the registers below, and that nothing a guest
//! writes to them reaches beyond its own memory and the device's.
//!
//! Start at [`VirtualGpu::new`], and at [`registers`] for a driver.
//!
//! # Identity
//!
//! Vendor [`VENDOR`], device [`DEVICE`], class 3D controller. The vendor is the one that emulators
//! use; no hardware has it.
//!
//! # Registers
//!
//! BAR 0, little-endian, accessed with 4 or 8 bytes, aligned ([`registers`]):
//!
//! | offset | bytes | | |
//! | --- | --- | --- | --- |
//! | 0x00 | 4 | identity | the bytes `PGPU` |
//! | 0x04 | 4 | version | 1 |
//! | 0x08 | 8 | memory | bytes of device memory, the size of BAR 2 |
//! | 0x10 | 8 | source | offset in device memory, or a DMA address |
//! | 0x18 | 8 | target | the same |
//! | 0x20 | 8 | length | bytes |
//! | 0x28 | 8 | pattern | of a fill, repeated from the target's first byte on |
//! | 0x30 | 4 | command | a write starts: 1 copy, 2 fill; by DMA address: bit 8 source, 9 target |
//! | 0x34 | 4 | status | 0 idle, 1 busy, 2 done, 3 bad command or range, 4 no such host memory |
//!
//! The end of a command raises vector 0. A command that comes while another runs is dropped. Source
//! and target must not overlap. A reset forgets what runs and zeroes the device memory.
#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod engine;
mod function;
pub mod registers;
mod vram;

pub use function::{DEVICE, VENDOR, VirtualGpu};
pub use vram::SizeError;
