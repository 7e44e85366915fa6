//! The RoCE link: RoCEv2 packets over UDP sockets, in GSO and GRO trains.
//!
//! An [`Endpoint`] holds a device's sockets. A [`Batch`] takes packets, writes them with padding
//! and ICRC into a staging buffer and sends them; a [`Receiver`] takes what arrives, checks it and
//! hands it out. Nothing here knows queue pairs or retries: what the kernel refuses to send is
//! counted and otherwise lost, as on a wire.

mod addresses;
mod batch;
mod crc;
mod endpoint;
mod flow;
mod frames;
mod framing;
mod host_socket;
mod in_use;
mod lan;
mod packet;
mod receiver;
mod socket;
mod stats;
mod trace;

pub use addresses::gids::{
    Changes, GID_TABLE_LEN, GidEntry, GidTable, Interfaces, addresses_on, gid_of_ip, ip_of_gid,
};
pub use addresses::neighbour::{Knowledge, Neighbour};
pub use addresses::watch::Watch;
pub use batch::{Batch, Fill};
pub use endpoint::{DEFAULT_RECEIVE_BUFFER_BYTES, Endpoint};
pub use flow::{Flow, Path};
pub use frames::{FrameBatch, FramePort, FrameReceiver, FrameTap, TappedFrame};
pub use framing::Ethernet;
pub use host_socket::{HostSocket, OwnAddresses};
pub use lan::{FrameSink, HOST, LOOPBACK, Lan, Station, mac_of_slot, slot_of_mac};
pub use receiver::{Datagram, Receiver};
pub use socket::backlog::{Backlog, Losses};
pub use socket::udp::keep_strangers_out;
pub use stats::Stats;
pub use trace::Trace;

/// Endpoints and flows are shared between threads; buffers move from one to another.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    const fn moved<T: Send>() {}
    shared::<Endpoint>();
    shared::<Flow>();
    shared::<Trace>();
    shared::<FramePort>();
    shared::<FrameTap>();
    moved::<FrameBatch>();
    moved::<FrameReceiver>();
    moved::<Batch>();
    moved::<Receiver>();
    moved::<GidTable>();
};

/// The parser of the kernel's address listing, for fuzzing; not part of the API.
#[doc(hidden)]
pub use addresses::netlink::{parse_anything, set_loopback_up};
