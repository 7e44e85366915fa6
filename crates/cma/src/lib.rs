//! The RDMA connection manager above the InfiniBand one: IP addresses, port spaces, ids and their events.
//!
//! What `drivers/infiniband/core/cma.c` and `ucma.c` do in Linux, as a state machine: commands, management datagrams and
//! instants go in; answers, datagrams, events and a next deadline come out. Nothing here does I/O or reads a clock.
//! Error numbers, event kinds and their status are the kernel's. How commands look in memory, and where the host's
//! addresses and routes come from, is the caller's business.
#![forbid(unsafe_code)]

mod addr;
mod cma;
mod connect;
mod error;
mod event;
mod header;
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
pub use header::{HEADER_LEN, Header};
pub use id::{ChannelId, Key, Local, Path, QpType, RATE, State};
pub use options::IdOption;
pub use ports::{Claim, ClaimKind, Claims, FreePorts, Ports, Sharing};
pub use qp::QpAttr;
pub use resolve::Neighbour;
