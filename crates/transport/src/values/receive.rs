//! Receive work requests.

use super::SgList;

/// A receive work request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecvWr {
    /// The program's identifier.
    pub wr_id: u64,
    /// Where the message goes.
    pub scatter: SgList,
}
