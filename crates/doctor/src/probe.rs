//! Answers of the host's own devices to questions that only they can answer. Asking is the caller's: this room reads files.

use crate::Facts;
use pcie::Function;

/// What an RDMA device answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// Name of the RDMA device.
    pub device: String,
    /// Whether its driver registers dma-bufs, with the words that say how that is known; `None` if it could not be asked.
    pub registers_dmabuf: Option<(bool, String)>,
    /// Bytes that it wrote to itself, or why it could not; `None` if it was not asked to.
    pub loopback: Option<Result<u64, String>>,
}

impl Facts {
    /// What the RDMA device of an adapter answered.
    pub(crate) fn probe(&self, nic: &Function) -> Option<&Probe> {
        self.probes.iter().find(|probe| nic.interfaces.contains(&probe.device))
    }
}
