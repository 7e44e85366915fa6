//! RDMA verbs, safe and small, over whichever libibverbs is at hand: the distribution's with a real
//! NIC, or the software HCA of this project.
//!
//! The library is loaded at run time ([`Library::system`], [`Library::load`]); nothing is linked.
//! Every object is owned: it keeps alive what it depends on and is destroyed in the right order.
//! What a program may write without `unsafe`:
//!
//! * **Registered memory is never a slice.** A peer may write it at any time, so [`Mr`] owns its
//!   memory and gives copies in and out. Dropping a region first takes the key away from the device
//!   and then frees the memory: a work request still in flight completes with an error, it never
//!   touches freed memory.
//! * **GPU memory comes as a dma-buf** ([`Pd::reg_dmabuf`]); the CPU never touches it here.
//! * **A queue pair is typed by what it can do**: [`IdleQp`] takes receives and has an [`Endpoint`]
//!   to hand to the peer; [`IdleQp::connect`] turns it into a [`Qp`] that sends.
//! * **A failed work request says what to do**: [`Completion::result`] carries the status with its
//!   meaning and remedy.
//!
//! ```no_run
//! use peerdma::{Access, HostBuffer, Library};
//! # use peerdma::{Endpoint, RemoteSlice};
//! # fn exchange(mine: Endpoint, key: RemoteSlice) -> (Endpoint, RemoteSlice) { (mine, key) }
//! # fn main() -> Result<(), peerdma::Error> {
//! let context = Library::system()?.open(None)?;
//! let pd = context.alloc_pd()?;
//! let cq = context.create_cq(64, None)?;
//! let mr = pd.reg(HostBuffer::new(4096)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let qp = pd.qp(&cq, &cq).build()?;
//! let (far, target) = exchange(qp.endpoint(), mr.remote());
//! let qp = qp.connect(&far)?;
//! mr.write(0, b"hello")?;
//! qp.post_write(1, &[mr.slice(0..5)?], target.slice(0..5)?)?;
//! for completion in cq.wait(None)? {
//!     completion.result?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The examples beside this crate are whole programs: `write`, `gpu_memory`, `data_direct`, `odp`
//! and `events_async`.
//!
//! Layouts and numbers are those of `infiniband/verbs.h`; the crate was written against its
//! documented interface and is checked against it in the tests.

mod attr;
mod capabilities;
mod completion;
mod context;
mod cq;
mod error;
mod ffi;
mod gid;
mod library;
mod memory;
mod pd;
mod qp;

pub use attr::{DeviceAttr, GidEntry, GidType, Mtu, PortAttr, PortState};
pub use capabilities::{FirmwareCaps, MemoryAttr};
pub use completion::{Completed, Completion, CompletionError, Operation, Status};
pub use context::Context;
pub use cq::{CompChannel, Cq};
pub use error::{Error, Result};
pub use gid::Gid;
pub use library::{DeviceInfo, Library};
pub use memory::{
    Access, Dmabuf, FdCommands, HostBuffer, LocalSlice, MappedBuffer, Mr, Region, RemoteSlice,
};
pub use pd::Pd;
pub use qp::{Endpoint, IdleQp, Op, Qp, QpBuilder, QpState, SendFlags};
