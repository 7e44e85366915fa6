//! Registered memory: turns (address or descriptor, length, access) into DMA segments with a route.
//!
//! One [`Umem`] is one registration of any kind. It knows nothing of queues, packets or keys. The
//! HCA reaches the memory only inside [`Umem::enter`], so that a revoke, an unmap or a move waits
//! for exactly those who are inside.
//!
//! Registered memory is untyped: remote peers, the program and other processes write it at any
//! time. Nothing here forms a reference to it; bytes are copied out and in, and a copy may mix old
//! and new bytes, as a DMA engine's would (D4).
//!
//! Start at [`Umem`] in `region`, and at the ways to make one in `register`. Below them, each
//! knowing those before it only: `request` is what a registration asks for and why it is refused,
//! `memory` what DMA addresses name, `ats` the translations that a function keeps, `revoke` who is
//! inside a registration and its end, `peer` what other drivers claim.
#![forbid(unsafe_code)]

mod ats;
mod memory;
mod peer;
mod region;
mod register;
mod request;
mod revoke;

pub use ats::{Lookup, LookupWatcher, TranslationCache, translation_unit};
pub use memory::device_memory::DeviceMemory;
pub use memory::page_size::PageSizes;
pub use memory::space::{AccessError, DmaSpace, Segment, process_space};
pub use mm::guard::fold::Fold;
pub use mm::{AtomicOp, Paging, PagingCounts, PagingWatcher, Prefetch, Sink, Source, page_size};
pub use peer::hold::Ticket;
pub use peer::{PeerClient, PeerMapping, PeerMemory};
pub use region::access::Access;
pub use region::umem::Umem;
pub use register::check;
pub use register::clients::PeerClients;
pub use request::dmabuf_range::DmabufRange;
pub use request::error::RegError;
pub use request::rights::{AccessFlags, Offered, Rereg};
pub use revoke::{Outsiders, RevokeWatcher, Shown};
