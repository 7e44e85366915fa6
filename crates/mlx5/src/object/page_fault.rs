//! Page faults told to the driver, and its answers (PRM "Page Fault Event" and `PAGE_FAULT_RESUME`;
//! `struct mlx5_eqe_page_fault`, `trans_page_fault_info`, `mem_page_fault_info`).
//!
//! There are two schemes. In the older one an event names the request that met the fault, and the
//! driver reads it again to find its memory; in the newer one an event names the memory. Which it
//! is the driver decides with the capability `mem_page_fault`. Every fault has a token by which the
//! driver answers, once.
//!
//! An implicit region of Linux's driver is a list (KSM) of keys, each over 1 GiB. Once the last
//! page of one is gone the driver forgets that key, and replaces it in the list later, in a work
//! queue; faults of the key that it hears of in between it refuses. So an error of the newer scheme
//! is about the key that the event named: the access looks again from the top of the list
//! ([`Verdict::RefusedBelow`]), as it would on hardware that translates anew. An error of the older
//! scheme is about the request.

use crate::layout::bits::put;
use crate::layout::head::Status;
use crate::layout::request::RequestId;
use crate::object::eq::{DATA_LEN, Eqs, event};
use crate::request::event::PageFaultResume;
use engine_thread::lock;
use hca::Counter;
use hca::Device;
use hca::transport::{Count, FaultSide, FaultedWork, PageFault, Verdict};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

/// Kinds of events (`MLX5_PFAULT_SUBTYPE_*`).
mod kind {
    pub(super) const REQUEST: u8 = 0;
    pub(super) const REMOTE: u8 = 1;
    pub(super) const MEMORY: u8 = 2;
}

/// Types of faults of requests (`enum wqe_page_fault_type`).
mod request {
    pub(super) const SHARED_RECEIVE: u32 = 0;
    pub(super) const SEND: u32 = 1;
    pub(super) const RECEIVE: u32 = 2;
    pub(super) const FETCH: u32 = 3;
}

/// Types of faults of peers' operations, as bits (`MLX5_PFAULT_*`).
const REMOTE_WRITES: u32 = 1 << 1;
const REMOTE_OPERATION: u32 = 1 << 2;

/// No other event of the same fault follows.
const LAST: u8 = 1 << 7;
const PAGE: u64 = 4096;
/// Most bytes that are asked for ahead of their use.
const AHEAD: u32 = 256 << 10;

/// The faults of a function that wait for their answers.
#[derive(Default)]
pub(crate) struct Faults {
    by_memory: AtomicBool,
    state: Mutex<OpenFaults>,
}

#[derive(Default)]
struct OpenFaults {
    given: u64,
    /// By token.
    open: HashMap<u64, OpenFault>,
}

/// A fault that was reported to the driver.
#[derive(Clone, Copy)]
struct OpenFault {
    qpn: u32,
    fault: u64,
    /// What an error of the driver's means.
    refused: Verdict,
}

impl Faults {
    /// From now on events name the memory, or the request.
    pub(crate) fn set_by_memory(&self, by_memory: bool) {
        self.by_memory.store(by_memory, Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, OpenFaults> {
        lock(&self.state)
    }

    /// Tells the driver of a fault of queue pair `qpn`. `false` when nobody listens for such
    /// events, or too many wait to be heard.
    pub(crate) fn tell(&self, eqs: &Eqs, qpn: u32, fault: &PageFault) -> bool {
        if !eqs.wants(event::PAGE_FAULT) {
            return false;
        }
        let by_memory = self.by_memory.load(Relaxed);
        let below = by_memory && fault.missing.below;
        let refused = if below { Verdict::RefusedBelow } else { Verdict::Refused };
        let told = OpenFault { qpn, fault: fault.id, refused };
        let token = self.file(told, if by_memory { 48 } else { 24 });
        let (kind, data) = match (by_memory, fault.work) {
            (true, _) => (kind::MEMORY, of_memory(token, fault)),
            (false, FaultedWork::Remote(..)) => (kind::REMOTE, of_remote(token, fault)),
            (false, _) => (kind::REQUEST, of_request(token, qpn, fault)),
        };
        let heard = eqs.post_page_fault(kind, &data);
        if !heard {
            self.state().open.remove(&token);
        }
        heard
    }

    /// A token for a fault, of `bits` bits.
    fn file(&self, told: OpenFault, bits: u32) -> u64 {
        let mut state = self.state();
        loop {
            state.given += 1;
            // Odd times: each number of 24 bits once, and whoever loses the high bits of a token is
            // found out.
            let serial = state.given.wrapping_mul(0x9e_3779) & 0xff_ffff;
            let token = if bits == 48 { serial << 24 | u64::from(told.qpn) } else { serial };
            if let Entry::Vacant(place) = state.open.entry(token) {
                place.insert(told);
                return token;
            }
        }
    }

    /// Takes the driver's answer (`PAGE_FAULT_RESUME`): whose fault it is about, and what becomes
    /// of it. One that comes after its queue pair went is about none, and no error.
    ///
    /// # Errors
    /// [`Status::BadResourceState`] for an answer to what nobody asked.
    pub(crate) fn answered(
        &self,
        answer: &PageFaultResume,
    ) -> Result<Option<(u32, u64, Verdict)>, Status> {
        let by_memory = self.by_memory.load(Relaxed);
        let token = if by_memory { answer.memory_token } else { answer.token };
        let mut state = self.state();
        match state.open.remove(&token) {
            Some(OpenFault { qpn, fault, refused }) => {
                let verdict = if answer.error { refused } else { Verdict::Served };
                Ok(Some((qpn, fault, verdict)))
            }
            None if state.given > 0 => Ok(None),
            None => Err(Status::BadResourceState),
        }
    }

    /// Nothing of queue pair `qpn` waits any more; how many did.
    pub(crate) fn forget(&self, qpn: u32) -> u64 {
        let mut state = self.state();
        let before = state.open.len();
        state.open.retain(|_, told| told.qpn != qpn);
        (before - state.open.len()) as u64
    }

    /// Nothing waits any more; how many did.
    pub(crate) fn clear(&self) -> u64 {
        self.set_by_memory(false);
        std::mem::take(&mut *self.state()).open.len() as u64
    }
}

/// So many faults that were told are over.
pub(crate) fn ended(hca: &Device, faults: u64) {
    hca.directory().count(Counter::PageFaultEventsEnded, faults);
}

fn of_memory(token: u64, fault: &PageFault) -> [u8; DATA_LEN] {
    let missing = fault.missing;
    let first = missing.addr & !(PAGE - 1);
    let missed = missing.addr - first + u64::from(missing.len);
    let pages = missed.div_ceil(PAGE).max(1);
    // Pages that the operation does not reach may have to be fetched from afar.
    let ahead = (missed + u64::from(fault.ahead.min(AHEAD))).div_ceil(PAGE).saturating_sub(pages);
    let mut data = [0; DATA_LEN];
    data[0] = LAST;
    put(&mut data, 2, &(ahead as u16).to_be_bytes());
    put(&mut data, 6, &token.to_be_bytes()[2..]);
    put(&mut data, 12, &((pages as u32) << 12).to_be_bytes());
    put(&mut data, 16, &missing.key.to_be_bytes());
    put(&mut data, 20, &first.to_be_bytes());
    data
}

fn of_remote(token: u64, fault: &PageFault) -> [u8; DATA_LEN] {
    let mut data = [0; DATA_LEN];
    let FaultedWork::Remote(remote, len) = fault.work else { return data };
    let writes = if fault.write { REMOTE_WRITES } else { 0 };
    let kind = REMOTE_OPERATION | writes;
    put(&mut data, 0, &fault.done.to_be_bytes());
    put(&mut data, 4, &remote.rkey.to_be_bytes());
    put(&mut data, 10, &(fault.packet as u16).to_be_bytes());
    put(&mut data, 12, &len.to_be_bytes());
    put(&mut data, 16, &remote.addr.to_be_bytes());
    put(&mut data, 24, &(kind << 24 | token as u32).to_be_bytes());
    data
}

fn of_request(token: u64, qpn: u32, fault: &PageFault) -> [u8; DATA_LEN] {
    let id = match fault.work {
        FaultedWork::Send(wr_id) | FaultedWork::Receive(wr_id) => RequestId::from_wr_id(wr_id),
        FaultedWork::Remote(..) => RequestId::default(),
    };
    let (kind, queue) = match (fault.side, fault.work) {
        (FaultSide::Landing, _) => (request::FETCH, qpn),
        (_, FaultedWork::Send(_)) => (request::SEND, qpn),
        _ if id.srqn != 0 => (request::SHARED_RECEIVE, id.srqn),
        _ => (request::RECEIVE, qpn),
    };
    let mut data = [0; DATA_LEN];
    put(&mut data, 0, &fault.done.to_be_bytes());
    put(&mut data, 6, &id.counter.to_be_bytes());
    put(&mut data, 10, &(fault.packet as u16).to_be_bytes());
    put(&mut data, 12, &(token as u32).to_be_bytes());
    put(&mut data, 24, &(kind << 24 | queue).to_be_bytes());
    data
}

#[cfg(test)]
mod tests {
    use super::*;
    use hca::Remote;
    use hca::transport::Missing;

    fn fault(work: FaultedWork) -> PageFault {
        let missing = Missing { key: 0x12_3407, addr: 0x7fff_0ffc, len: 8, below: false };
        let side = FaultSide::Service;
        PageFault { id: 5, side, missing, write: true, work, done: 64, packet: 8, ahead: 4097 }
    }

    #[test]
    fn an_event_names_the_memory() {
        let fault = fault(FaultedWork::Receive(1));
        let data = of_memory(0x1234_5678_9abc, &fault);
        let expected = [
            &[0x80, 0, 0, 1, 0, 0][..],
            &[0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc],
            &[0, 0, 0x20, 0],
            &[0, 0x12, 0x34, 7],
            &[0, 0, 0, 0, 0x7f, 0xff, 0, 0],
        ];
        assert_eq!(data[..], expected.concat());
    }

    #[test]
    fn an_event_names_the_request() {
        let id = RequestId { counter: 0x203, opcode: 8, srqn: 0 };
        let data = of_request(0xabcdef, 0x77, &fault(FaultedWork::Send(id.wr_id())));
        assert_eq!((data[3], &data[6..8]), (64, &[2, 3][..]));
        assert_eq!(
            (&data[12..16], &data[24..]),
            (&[0, 0xab, 0xcd, 0xef][..], &[1, 0, 0, 0x77][..])
        );
        let shared = RequestId { srqn: 9, ..id };
        let data = of_request(1, 0x77, &fault(FaultedWork::Receive(shared.wr_id())));
        assert_eq!(data[24..], [0, 0, 0, 9]);
        let remote = Remote { addr: 0x1_0000_0000, rkey: 0x55 };
        let data = of_remote(3, &fault(FaultedWork::Remote(remote, 4096)));
        assert_eq!((data[7], &data[12..16], data[19]), (0x55, &[0, 0, 16, 0][..], 1));
        assert_eq!(data[24..], [6, 0, 0, 3]);
    }

    #[test]
    fn tokens_are_unique_while_they_are_open() {
        let faults = Faults::default();
        let told = |qpn, fault| OpenFault { qpn, fault, refused: Verdict::Refused };
        let first = faults.file(told(1, 1), 24);
        faults.state().given += (1 << 24) - 1;
        assert_ne!(faults.file(told(2, 1), 24), first);
        faults.file(told(2, 2), 48);
        assert_eq!((faults.forget(2), faults.forget(2)), (2, 0));
        assert_eq!((faults.clear(), faults.clear()), (1, 0));
    }
}
