//! What a registration shows of itself to others than its process.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// Where memory is, for others than the process that registered it.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Address of the first byte in this process.
    pub addr: u64,
    /// How the function gets there.
    pub route: &'a Arc<pcie::Route>,
    /// For a buffer that may move: its control block, and the number of moves after which it is
    /// there.
    pub buffer: Option<(BorrowedFd<'a>, u64)>,
    /// Whether the function keeps translations of it, by [units](crate::translation_unit) of
    /// which the first begins with the page of `addr`.
    pub translated: bool,
    /// Whether the end of its mapping is noticed however the program ends it, so that nobody has to
    /// ask the kernel what is there now.
    pub watched: bool,
}
