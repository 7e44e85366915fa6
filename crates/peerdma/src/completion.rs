//! Completions as values: what finished, or why not and what to do about it.

use std::fmt;
use verbs_sys::flags::{WC_WITH_IMM, WC_WITH_INV};
use verbs_sys::ibv_wc;

/// One finished work request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// The number given when the request was posted.
    pub id: u64,
    /// Number of the local queue pair.
    pub qpn: u32,
    /// What happened.
    pub result: Result<Completed, CompletionError>,
}

/// A request that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completed {
    /// What it did.
    pub operation: Operation,
    /// Bytes received; for requests of this side the device may leave 0.
    pub byte_len: u32,
    /// Immediate data of a received message.
    pub imm: Option<u32>,
    /// Key that a received message invalidated.
    pub invalidated: Option<u32>,
}

/// What a completed request did (`enum ibv_wc_opcode`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// A message of this side.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
    /// Compare and swap.
    CompareSwap,
    /// Fetch and add.
    FetchAdd,
    /// A received message.
    Recv,
    /// A peer's RDMA WRITE with immediate data, which consumed a receive.
    RecvWriteImm,
    /// Another operation of the verbs API, by number.
    Other(u32),
}

/// A request that failed. The queue pair is in the error state: destroy it and connect anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CompletionError {
    /// Why.
    pub status: Status,
    /// The device's own code, for its vendor.
    pub vendor: u32,
}

macro_rules! statuses {
    ($($name:ident = $number:literal, $meaning:literal, $remedy:literal;)*) => {
        /// Why a request failed (`enum ibv_wc_status`, IBA 10.10.2).
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(
            missing_docs,
            reason = "meaning() documents them, and ibv_poll_cq(3) has the names"
        )]
        #[non_exhaustive]
        pub enum Status {
            $($name,)*
            Other(u32),
        }

        impl Status {
            fn from_raw(raw: u32) -> Status {
                match raw {
                    $($number => Status::$name,)*
                    other => Status::Other(other),
                }
            }

            /// What it means.
            pub fn meaning(&self) -> &'static str {
                match self {
                    $(Status::$name => $meaning,)*
                    Status::Other(_) => "a status this crate does not know",
                }
            }

            /// What usually helps.
            pub fn remedy(&self) -> &'static str {
                match self {
                    $(Status::$name => $remedy,)*
                    Status::Other(_) => "see ibv_poll_cq(3) of the library in use",
                }
            }
        }
    };
}

statuses! {
    LocalLength = 1, "the message does not fit the local buffers",
        "post receives as long as the longest message";
    LocalQpOperation = 2, "the request is not legal on this queue pair",
        "check the operation against the queue pair's type and state";
    LocalProtection = 4,
        "a local slice names memory that is not registered in this protection domain",
        "keep the region alive until the completion, and register it in the queue pair's domain";
    Flushed = 5, "the queue pair failed earlier and gave this request back",
        "look at the first completion that failed; then connect anew";
    MwBind = 6, "binding a memory window failed", "check the region's access";
    BadResponse = 7, "the peer answered what the protocol does not allow",
        "check that both ends use the same PSNs and MTU";
    LocalAccess = 8, "a local buffer may not be written", "register it with Access::LOCAL_WRITE";
    RemoteInvalidRequest = 9, "the peer cannot take this request",
        "check that the peer posted long enough receives and that the queue pair allows the \
         operation";
    RemoteAccess = 10, "the peer's memory may not be accessed this way",
        "check rkey, range and access of the peer's region, and that it is still registered";
    RemoteOperation = 11, "the peer could not complete the request",
        "look for an error on the peer's side: its memory may be gone";
    RetryExceeded = 12, "the peer does not answer",
        "check that the peer is alive and connected, and that UDP port 4791 passes between the \
         hosts without address translation";
    RnrRetryExceeded = 13, "the peer had no receive posted in time",
        "post receives before the peer sends, or raise rnr_retry (7 is without end)";
    RemoteAborted = 16, "the peer aborted", "look for an error on the peer's side";
    Fatal = 19, "the device failed", "close the device and open it again";
    ResponseTimeout = 20, "a response timed out", "check that the peer is alive";
    General = 21, "the transport failed", "see the vendor code";
}

impl fmt::Display for CompletionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} ({:?}, vendor code {:#x}): {}",
            self.status.meaning(),
            self.status,
            self.vendor,
            self.status.remedy()
        )
    }
}

impl std::error::Error for CompletionError {}

impl Completion {
    pub(crate) fn from_raw(wc: &ibv_wc) -> Completion {
        let result = if wc.status == 0 {
            let with_imm = wc.wc_flags & WC_WITH_IMM != 0;
            let with_inv = wc.wc_flags & WC_WITH_INV != 0;
            Ok(Completed {
                operation: Operation::from_raw(wc.opcode),
                byte_len: wc.byte_len,
                imm: with_imm.then_some(u32::from_be(wc.imm_or_rkey)),
                invalidated: with_inv.then_some(wc.imm_or_rkey),
            })
        } else {
            Err(CompletionError { status: Status::from_raw(wc.status), vendor: wc.vendor_err })
        };
        Completion { id: wc.wr_id, qpn: wc.qp_num, result }
    }
}

impl Operation {
    fn from_raw(raw: u32) -> Operation {
        match raw {
            0 => Operation::Send,
            1 => Operation::Write,
            2 => Operation::Read,
            3 => Operation::CompareSwap,
            4 => Operation::FetchAdd,
            128 => Operation::Recv,
            129 => Operation::RecvWriteImm,
            other => Operation::Other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn immediate_data_is_swapped_and_keys_are_not() {
        let wc = ibv_wc {
            opcode: 129,
            imm_or_rkey: 0x0102_0304_u32.to_be(),
            wc_flags: 2,
            ..Default::default()
        };
        let done = Completion::from_raw(&wc).result.unwrap();
        assert_eq!((done.operation, done.imm), (Operation::RecvWriteImm, Some(0x0102_0304)));
        let wc = ibv_wc { opcode: 128, imm_or_rkey: 77, wc_flags: 8, ..Default::default() };
        assert_eq!(Completion::from_raw(&wc).result.unwrap().invalidated, Some(77));
    }

    #[test]
    fn a_failure_says_what_to_do() {
        let wc = ibv_wc { status: 12, vendor_err: 0x81, opcode: 255, ..Default::default() };
        let error = Completion::from_raw(&wc).result.unwrap_err();
        assert_eq!(error.status, Status::RetryExceeded);
        assert!(error.to_string().contains("4791"), "{error}");
        assert_eq!(Status::from_raw(99), Status::Other(99));
    }
}
