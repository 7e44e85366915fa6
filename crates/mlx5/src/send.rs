//! The send doorbell: what the driver wrote into a send queue becomes the HCA's work requests.

use crate::function::Shared;
use crate::memory_copy;
use crate::modify::of_request;
use crate::objects::QpPair;
use crate::psv;
use crate::qp::{BadQueue, Entry, Purpose, Receives};
use crate::report::Act;
use crate::request::RequestId;
use crate::tags;
use crate::umr::{self, Work};
use crate::wqe::{self, Control, Malformed};
use hca::{
    AttrMask, Completion, CompletionSink, Datagram, Error, Payload, QpAttr, QpState, SendOp,
    SendWr, SgList, WcOpcode, WcStatus,
};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::Relaxed;

/// The driver rang for queue pair `number`.
pub(crate) fn doorbell(shared: &Shared, number: u32) {
    let Ok(pair) = shared.objects.qps.get(number) else {
        if !shared.nic.ring(shared, number) {
            shared.reports.tell(Act::Doorbell, format_args!("queue pair {number:#x}"));
        }
        return;
    };
    if pair.queues.purpose == Purpose::MemoryKeys {
        return change_keys(shared, &pair);
    }
    let mut entries = Vec::new();
    let drained = pair.queues.drain(|entry| entries.push(entry));
    let mut refused = None;
    let mut requests = entries.iter().filter_map(|entry| {
        if refused.is_some() {
            return None;
        }
        match request(shared, &pair, entry) {
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
        fail(&pair, id.unwrap_or_default());
    } else if let Err(BadQueue) = drained {
        shared.reports.tell(Act::SendQueue, format_args!("queue pair {number:#x}"));
        fail(&pair, RequestId::default());
    }
}

/// The queue pair that only changes keys: its requests are done at once, in order. One that fails ends it, and those behind
/// it are flushed.
fn change_keys(shared: &Shared, pair: &QpPair) {
    let mut entries = Vec::new();
    let drained = pair.queues.drain(|entry| entries.push(entry));
    let state = || pair.state.lock().unwrap_or_else(PoisonError::into_inner);
    for entry in entries {
        let now = *state();
        let done = match now {
            QpState::Rts if entry.id.opcode == wqe::NOP => Ok(()),
            QpState::Rts => Work::parse(entry.id.opcode, &entry.bytes)
                .map_err(|_| WcStatus::LocQpOpErr)
                .and_then(|work| work.perform(shared, None)),
            _ => Err(WcStatus::WrFlushErr),
        };
        match done {
            Ok(()) if !Control::parse(&entry.bytes).signaled() => {}
            Ok(()) => complete(pair, entry.id, WcStatus::Success),
            Err(status) => {
                *state() = QpState::Err;
                complete(pair, entry.id, status);
            }
        }
    }
    if drained.is_err() {
        *state() = QpState::Err;
        complete(pair, RequestId::default(), WcStatus::LocQpOpErr);
    }
}

fn request(shared: &Shared, pair: &QpPair, entry: &Entry) -> Result<SendWr, Error> {
    let control = Control::parse(&entry.bytes);
    let own = |token| SendWr {
        wr_id: entry.id.wr_id(),
        op: SendOp::Custom(token),
        payload: Payload::Gather(SgList::new()),
        flags: control.send_flags(),
        datagram: None,
        xrc_srqn: 0,
    };
    match control.opcode {
        memory_copy::OPCODE if !pair.copies.load(Relaxed) => {
            return Err(Error::NotSupported("a queue pair that was not told to copies nothing"));
        }
        opcode @ (umr::OPCODE | psv::SET | memory_copy::OPCODE) => {
            let work = Work::parse(opcode, &entry.bytes);
            let work = work.map_err(|_| Error::Invalid("a change of a key is malformed"))?;
            return Ok(own(pair.waiting.add(work)));
        }
        tags::OPCODE => {
            let request = tag_request(shared, pair, entry);
            let request = request.map_err(|_| Error::Invalid("no change of a matching list"))?;
            return Ok(own(pair.waiting.add(Work::Tags(Box::new(request)))));
        }
        wqe::NOP => return Ok(own(umr::NOTHING)),
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
            ah: pair.handle(&shared.hca, of_request(shared, to.ah))?,
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

/// A change of the list of the queue that the pair's receives are taken from.
fn tag_request(shared: &Shared, pair: &QpPair, entry: &Entry) -> Result<tags::Request, Malformed> {
    let Receives::Shared(number) = pair.queues.receives else {
        return Err(Malformed::Opcode(tags::OPCODE));
    };
    let queue = shared.objects.srqs.get(number).map_err(|_| Malformed::Opcode(tags::OPCODE))?;
    tags::parse(queue, entry.id, &entry.bytes)
}

/// A request cannot be executed: a local queue pair operation error. What came before it is flushed first, for a driver retires
/// requests up to the one that completes.
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
