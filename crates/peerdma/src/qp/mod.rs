//! Reliable-connection queue pairs: built, handed to the peer as an [`Endpoint`], connected, used.

mod builder;
mod endpoint;
mod idle;
mod post;
mod raw;
mod work;

pub use builder::QpBuilder;
pub use endpoint::Endpoint;
pub use idle::IdleQp;
pub use raw::QpState;
pub use work::{Op, SendFlags};

use crate::error::Result;
use crate::memory::{LocalSlice, RemoteSlice};
use raw::RawQp;
use verbs_sys::flags::QP_STATE;
use verbs_sys::ibv_qp_attr;

/// A connected queue pair. Requests complete in order on the queues it was built with.
#[derive(Debug)]
pub struct Qp {
    qp: RawQp,
    endpoint: Endpoint,
    peer: Endpoint,
}

impl Qp {
    /// This side's endpoint.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The peer's endpoint.
    pub fn peer(&self) -> Endpoint {
        self.peer
    }

    /// The state the device reports.
    pub fn state(&self) -> Result<QpState> {
        self.qp.state()
    }

    /// Gives all outstanding requests back as [`Status::Flushed`](crate::Status::Flushed) and
    /// stops.
    pub fn set_error(&self) -> Result<()> {
        let mut attr = ibv_qp_attr { qp_state: QpState::Error as u32, ..Default::default() };
        self.qp.modify(&mut attr, QP_STATE)
    }

    /// Posts a request. `id` comes back in its completion.
    ///
    /// A region may be dropped before the completion; the request then fails with
    /// [`Status::LocalProtection`](crate::Status::LocalProtection).
    pub fn post(&self, id: u64, op: &Op<'_>, flags: SendFlags) -> Result<()> {
        self.qp.post_send(id, op, flags)
    }

    /// Posts a receive for a message or a write with immediate data.
    pub fn post_recv(&self, id: u64, local: &[LocalSlice<'_>]) -> Result<()> {
        self.qp.post_recv(id, local)
    }

    /// RDMA WRITE with a completion.
    pub fn post_write(&self, id: u64, local: &[LocalSlice<'_>], remote: RemoteSlice) -> Result<()> {
        self.post(id, &Op::Write { local, remote, imm: None }, SendFlags::default())
    }

    /// RDMA READ with a completion.
    pub fn post_read(&self, id: u64, local: &[LocalSlice<'_>], remote: RemoteSlice) -> Result<()> {
        self.post(id, &Op::Read { local, remote }, SendFlags::default())
    }

    /// SEND with a completion.
    pub fn post_send(&self, id: u64, local: &[LocalSlice<'_>]) -> Result<()> {
        self.post(id, &Op::Send { local, imm: None }, SendFlags::default())
    }
}
