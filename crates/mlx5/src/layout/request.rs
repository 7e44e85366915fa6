//! What a work request is called between this front end and the HCA: the driver's counter, and what
//! its completion says besides.

/// What the HCA's `wr_id` says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RequestId {
    /// Counter of the request's first basic block, or index in a shared queue.
    pub(crate) counter: u16,
    /// The opcode of a send; 0 for a receive.
    pub(crate) opcode: u8,
    /// Shared receive queue that a receive was taken from, else 0.
    pub(crate) srqn: u32,
}

impl RequestId {
    pub(crate) fn wr_id(self) -> u64 {
        u64::from(self.srqn & 0xff_ffff) << 32
            | u64::from(self.opcode) << 16
            | u64::from(self.counter)
    }

    pub(crate) fn from_wr_id(wr_id: u64) -> RequestId {
        RequestId {
            counter: wr_id as u16,
            opcode: (wr_id >> 16) as u8,
            srqn: (wr_id >> 32) as u32 & 0xff_ffff,
        }
    }
}
