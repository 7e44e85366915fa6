//! The RDMA connection manager above the InfiniBand one: IP addresses, port spaces, ids and their
//! events.
//!
//! It does what `drivers/infiniband/core/cma.c` and `ucma.c` do in Linux, as a state machine:
//! commands, management datagrams and instants go in; answers, datagrams, events and a next
//! deadline come out. It promises the kernel's error numbers, event kinds and their status, and
//! that nothing here does I/O or reads a clock. How commands look in memory, and where the host's
//! addresses and routes come from, is the caller's business.
//!
//! Start at [`Cma`], which holds the ids: its methods are the commands of `rdma_cm(7)`, and
//! [`Cma::receive`] takes what the peers send. [`Ports`] is who is bound where.
#![forbid(unsafe_code)]

mod addr;
mod cma;
mod connect;
mod error;
mod event;
mod id;
mod incoming;
mod multicast;
mod options;
mod ports;
mod qp;
mod resolve;

pub use addr::{Addr, IbAddr, PortSpace, gid_of};
pub use cma::{Cma, Described};
pub use connect::ConnectParam;
pub use error::Error;
pub use event::{AddressVector, ConnParam, DatagramParam, Delivered, Ece, Event, EventKind, Param};
pub use id::{ChannelId, IdState, Key, Local, Path, QpType, RATE};
pub use options::IdOption;
pub use ports::{Claim, ClaimKind, Claims, FreePorts, Ports, Sharing};
pub use qp::QpAttr;
pub use resolve::Neighbour;
