//! The send doorbell: what the driver wrote into a send queue becomes the HCA's work requests.

use crate::keys::psv;
use crate::layout::request::RequestId;
use crate::layout::tag_cqe::TAG_OPCODE;
use crate::layout::wqe::{self, Control, Malformed};
use crate::machine::alarm::Appointed;
use crate::machine::report::Act;
use crate::object::objects::QpPair;
use crate::object::qp::{BadQueue, Entry, Purpose};
use crate::object::shared::Shared;
use crate::work::address::address_of_request;
use crate::work::{memory_copy, umr};
use hca::transport::Worked;
use hca::{
    AttrMask, Completion, CompletionSink, Datagram, Error, Payload, QpAttr, QpState, SendOp,
    SendWr, SgList, WcOpcode, WcStatus,
};
use std::ops::ControlFlow;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering::Relaxed;

/// Posts what the driver wrote into the send queue.
pub(crate) fn read(shared: &Shared, pair: &QpPair) {
    let number = pair.back.number();
    if pair.queues.purpose == Purpose::MemoryKeys {
        return change_keys(shared, pair);
    }
    let mut entries = Vec::new();
    let drained = pair.queues.drain(|entry| {
        entries.push(entry);
        ControlFlow::Continue(())
    });
    let mut refused = None;
    let mut requests = entries.iter().filter_map(|entry| {
        if refused.is_some() {
            return None;
        }
        match request(shared, pair, entry) {
            Ok(request) => Some(Ok(request)),
            Err(error) => {
                let place = format_args!("queue pair {number:#x}: {error}");
                shared.reports.tell(Act::Request(entry.id.opcode), place);
                refused = Some(entry.id);
                Some(Err(error))
            }
        }
    });
    let posted = pair.back.post_send(&mut requests);
    drop(requests);
    if let Err((index, _)) = posted {
        let id = refused.or_else(|| entries.get(index).map(|entry| entry.id));
        fail(pair, id.unwrap_or_default());
    } else if let Err(BadQueue) = drained {
        shared.reports.tell(Act::SendQueue, format_args!("queue pair {number:#x}"));
        fail(pair, RequestId::default());
    }
}

/// The queue pair that only changes keys: its requests are done in order, a share of them at once.
/// One that fails ends it, and those behind it are flushed.
fn change_keys(shared: &Shared, pair: &QpPair) {
    let state = pair.state.lock();
    if !pair.appointed.load(Relaxed) {
        go_on_changing(shared, pair, state);
    }
}

fn go_on_changing(shared: &Shared, pair: &QpPair, mut state: MutexGuard<'_, QpState>) {
    if *state == QpState::Reset {
        return;
    }
    let mut share = pair.state.begin();
    let mut waits = false;
    let drained = pair.queues.drain(|entry| {
        let done = match *state {
            QpState::Rts => umr::perform_now(shared, &pair.queues, pair.changer, &entry, 0),
            _ => Err(WcStatus::WrFlushErr),
        };
        match done {
            Ok(_) if !Control::parse(&entry.bytes).signaled() => {}
            Ok(_) => complete(pair, entry.id, WcStatus::Success),
            Err(status) => {
                *state = QpState::Err;
                complete(pair, entry.id, status);
            }
        }
        match done {
            Ok(Worked::All(bytes) | Worked::Part(bytes)) => share.spend(1, bytes),
            Err(_) => share.spend(1, 0),
        }
        waits = share.is_over() && pair.state.put_off(shared.eqs.alarms(), pair.this.clone());
        if waits { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    pair.appointed.store(waits, Relaxed);
    if drained.is_err() {
        *state = QpState::Err;
        complete(pair, RequestId::default(), WcStatus::LocQpOpErr);
    }
}

impl Appointed for QpPair {
    fn due(&self) {
        if let Some(shared) = self.shared.upgrade() {
            let state = self.state.lock_to_go_on();
            self.appointed.store(false, Relaxed);
            go_on_changing(&shared, self, state);
        }
    }
}

fn request(shared: &Shared, pair: &QpPair, entry: &Entry) -> Result<SendWr, Error> {
    let control = Control::parse(&entry.bytes);
    let own = || SendWr {
        wr_id: entry.id.wr_id(),
        op: SendOp::Custom(entry.id.wr_id()),
        payload: Payload::Gather(SgList::new()),
        flags: control.send_flags(),
        datagram: None,
        xrc_srqn: 0,
    };
    match control.opcode {
        memory_copy::OPCODE if !pair.copies.load(Relaxed) => {
            return Err(Error::NotSupported("a queue pair that was not told to copies nothing"));
        }
        umr::OPCODE | psv::SET | memory_copy::OPCODE | TAG_OPCODE | wqe::NOP => return Ok(own()),
        _ => {}
    }
    let kind = pair.queues.purpose.service();
    let send = wqe::send(kind, &entry.bytes).map_err(|malformed| match malformed {
        Malformed::Opcode(_) => Error::NotSupported("the opcode of a send request"),
        Malformed::Short => Error::Invalid("a send request is cut off"),
    })?;
    let datagram = match send.address {
        None => None,
        Some(to) => Some(Datagram {
            ah: pair.handle(&shared.hca, address_of_request(shared, to.ah))?,
            remote_qpn: to.qpn,
            remote_qkey: to.qkey,
        }),
    };
    Ok(SendWr {
        wr_id: entry.id.wr_id(),
        op: send.op,
        payload: send.payload,
        flags: send.flags,
        datagram,
        xrc_srqn: send.xrc_srqn,
    })
}

/// A request cannot be executed: a local queue pair operation error. What came before it is flushed
/// first, for a driver retires requests up to the one that completes.
fn fail(pair: &QpPair, id: RequestId) {
    let attr = QpAttr { qp_state: QpState::Err, ..pair.back.query() };
    // From RESET there is no way to the error state, and nothing to flush.
    let _ = pair.back.modify(&attr, AttrMask::STATE);
    complete(pair, id, WcStatus::LocQpOpErr);
}

/// A completion that the HCA knows nothing of.
fn complete(pair: &QpPair, id: RequestId, status: WcStatus) {
    let Some(cq) = &pair.send_cq else { return };
    let completion = Completion {
        solicited: status != WcStatus::Success,
        ..Completion::new(id.wr_id(), status, WcOpcode::Send, pair.back.number())
    };
    cq.completed(completion);
}
