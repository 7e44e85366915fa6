//! Memory that a peer's operation was granted.

use super::Refusal;
use crate::keys::MemRef;
use umem::{AccessError, Fold};

/// Memory that a peer's operation was granted.
pub struct Target(pub(super) Option<MemRef>);

impl Target {
    /// Places bytes of an RDMA WRITE, `at` counted from its start.
    pub fn place(&self, at: u64, bytes: &[u8]) -> Result<(), Refusal> {
        match &self.0 {
            Some(memory_ref) if !bytes.is_empty() => {
                memory_ref.write(at, bytes).map_err(Refusal::of_memory)
            }
            _ => Ok(()),
        }
    }

    /// Refuses for now an access to on-demand memory whose pages are just being changed: the peer
    /// comes again, and nobody waits here for a system call of the program's.
    pub fn ready(&self, at: u64, len: usize, write: bool) -> Result<(), Refusal> {
        match &self.0 {
            Some(memory_ref) if !memory_ref.is_ready(at, len, write) => Err(Refusal::NotReady),
            _ => Ok(()),
        }
    }

    /// The target of an answer without data, which has no memory.
    pub(crate) fn none() -> Target {
        Target(None)
    }

    /// Fetches bytes for an RDMA READ, `at` counted from its start. The error is that of the
    /// memory.
    pub fn fetch(&self, at: u64, bytes: &mut [u8], fold: &mut Fold) -> Result<(), AccessError> {
        match &self.0 {
            Some(memory_ref) if !bytes.is_empty() => memory_ref.read_folding(at, bytes, fold),
            _ => Ok(()),
        }
    }
}
