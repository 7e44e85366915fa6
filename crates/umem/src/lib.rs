//! Registered memory: turns (address or descriptor, length, access) into DMA segments with a route.
//!
//! One [`Umem`] is one registration of any kind. It knows nothing of queues, packets or keys. The HCA
//! reaches the memory only inside [`Umem::enter`], so that a revoke, an unmap or a move waits for exactly those
//! who are inside.
//!
//! Registered memory is untyped: remote peers, the program and other processes write it at any time. Nothing here forms a
//! reference to it; bytes are copied out and in, and a copy may mix old and new bytes, as a DMA engine's would (D4).
#![forbid(unsafe_code)]

mod access;
mod ats;
pub mod check;
mod device_memory;
mod gate;
mod paging;
mod peer;
mod pieces;
mod register;
mod sabotage;
mod slot;
mod space;
mod translation;
mod umem;

pub use access::Access;
pub use ats::{Lookup, LookupWatcher, TranslationCache};
pub use check::{AccessFlags, Offered, RegError, Rereg};
pub use device_memory::DeviceMemory;
pub use mm::guard::fold::Fold;
pub use mm::{AtomicOp, Paging, PagingCounts, PagingWatcher, Prefetch, page_size};
pub use peer::{PeerClient, PeerClients, PeerMapping, PeerMemory, Ticket};
pub use space::{AccessError, DmaSpace, Segment, process_space};
pub use umem::{RevokeWatcher, Umem};
