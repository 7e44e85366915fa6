//! Memory that a peer's operation was granted.

use super::arriving::Arriving;
use super::refusal::Refusal;
use crate::keys::MemRef;
use umem::{AccessError, Fold, Source};

/// Memory that a peer's operation was granted.
pub struct Target(pub(super) Option<MemRef>);

impl Target {
    /// Places bytes of an RDMA WRITE, `at` counted from its start.
    pub fn place(&self, at: u64, bytes: Arriving<'_>) -> Result<(), Refusal> {
        match &self.0 {
            Some(memory_ref) if bytes.bytes() > 0 => {
                bytes.place(0..bytes.bytes(), memory_ref, at).map_err(Refusal::of_memory)
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

    /// Has `each` read bytes for an RDMA READ where they are; as [`MemRef::read_in_place`].
    pub(crate) fn fetch_in_place(
        &self,
        at: u64,
        len: usize,
        each: &mut dyn FnMut(Source<'_>) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        match &self.0 {
            Some(memory_ref) if len > 0 => memory_ref.read_in_place(at, len, each),
            _ => Ok(()),
        }
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
