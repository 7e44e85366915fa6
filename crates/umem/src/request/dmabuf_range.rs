//! The part of a dma-buf that a registration is of: the four numbers that every front end passes
//! on, by name.

use crate::request::error::RegError;
use std::os::fd::RawFd;

/// A part of a dma-buf as the arguments of a registration name it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DmabufRange {
    /// The program's descriptor.
    pub fd: RawFd,
    /// Bytes of the buffer before the part.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Address by which work requests name the first byte.
    pub iova: u64,
}

impl DmabufRange {
    /// Where in the buffer it ends.
    ///
    /// # Errors
    /// [`RegError::Overflow`].
    pub fn end(&self) -> Result<u64, RegError> {
        self.offset.checked_add(self.len).ok_or(RegError::Overflow)
    }
}
