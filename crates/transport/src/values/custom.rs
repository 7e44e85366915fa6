//! Work that only a front end can do, in the order of a send queue.

#[cfg(doc)]
use super::SendOp;
use super::WcStatus;

/// Does what only a front end knows ([`SendOp::Custom`]).
pub trait CustomWork: Send + Sync {
    /// Does what `token` stands for, or goes on with it behind the first `done` bytes, with a QP's
    /// lock held: it may touch memory and keys, but must not wait for other QPs. What takes long is
    /// done in parts.
    ///
    /// # Errors
    /// The status that the request completes with; the QP ends.
    fn perform(&self, token: u64, done: u64) -> Result<Worked, WcStatus>;
}

/// How far a call to [`CustomWork::perform`] came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Worked {
    /// It is done, and took as long as sending this many bytes.
    All(u64),
    /// This many bytes more are done, and the rest is left for another call.
    Part(u64),
}
