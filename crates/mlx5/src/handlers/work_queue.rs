//! Commands that change queue pairs and shared receive queues.

use crate::handlers::counter_set;
use crate::handlers::modify;
use crate::layout::head::{Answer, Status, done};
use crate::object::page_fault;
use crate::object::qp::Purpose;
use crate::object::shared::Shared;
use crate::request::qp::{ModifyQp, Transition};
use crate::request::srq::{ArmRq, ArmXrcSrq, ModifyRmp};
use crate::work::send;
use hca::{AttrMask, QpAttr, QpState};
use std::sync::atomic::Ordering::Relaxed;

/// Takes a queue pair from one state to another.
pub(crate) fn modify_qp(shared: &Shared, transition: Transition, request: &ModifyQp) -> Answer {
    let qpn = request.qpn;
    let pair = shared.objects.qps.get(qpn)?;
    let to = transition.to();
    if let Some(from) = transition.from() {
        let mut state = pair.state.lock();
        let now = match pair.queues.purpose {
            Purpose::MemoryKeys => *state,
            _ => pair.back.state(),
        };
        if now != from {
            return Err(Status::BadQpState);
        }
        *state = to;
    }
    if pair.queues.purpose == Purpose::MemoryKeys {
        *pair.state.lock() = to;
        if to == QpState::Reset {
            pair.queues.reset();
        }
        return done();
    }
    if let Some(number) = modify::counter_set(transition, request) {
        pair.back.count_into(counter_set::named(shared, number)?);
        pair.queues.remember(&[modify::COUNTER_SET], &request.context);
    }
    if let Some(port) = modify::udp_source(transition, request) {
        // An InfiniBand port has no such capability.
        shared.hca.ethernet().map_err(|_| Status::BadParameter)?;
        pair.back.set_udp_source(port)?;
        pair.queues.remember(&[modify::UDP_PORT], &request.context);
    }
    let now = pair.back.query();
    let (attr, mask) = match to {
        QpState::Err | QpState::Reset => (QpAttr { qp_state: to, ..now }, AttrMask::STATE),
        _ => {
            let service = pair.queues.purpose.service();
            modify::attributes(shared, transition, service, now, request)
        }
    };
    if modify::copies_memory(transition, request) {
        pair.copies.store(true, Relaxed);
    }
    if modify::stops_at_bad_signatures(transition, request) {
        pair.back.stop_at_bad_signatures();
    }
    if now.qp_state == QpState::Sqd {
        pair.rewind();
    }
    pair.back.modify(&attr, mask)?;
    match to {
        QpState::Reset => {
            pair.copies.store(false, Relaxed);
            page_fault::ended(&shared.hca, shared.faults.forget(qpn));
            pair.queues.reset();
        }
        QpState::Err => {
            page_fault::ended(&shared.hca, shared.faults.forget(qpn));
        }
        _ => {
            let service = pair.queues.purpose.service();
            let fields = modify::remembered(transition, service, request);
            pair.queues.remember(&fields, &request.context);
        }
    }
    if transition == Transition::SqdToRts {
        send::read(shared, &pair);
    }
    done()
}

/// `ARM_XRC_SRQ`.
pub(crate) fn arm_xrc_srq(shared: &Shared, request: &ArmXrcSrq) -> Answer {
    shared.objects.srqs.get(request.xrc_srqn)?.front.arm(request.lwm);
    done()
}

/// `ARM_RQ`, of which only a queue that matches tags has need.
pub(crate) fn arm_tags(shared: &Shared, request: &ArmRq) -> Answer {
    const TAGS: u16 = 2;
    if request.op_mod != TAGS {
        return Err(Status::BadParameter);
    }
    shared.objects.srqs.get(request.srq_number)?.front.arm(request.lwm);
    done()
}

/// `MODIFY_RMP`.
pub(crate) fn modify_pool(shared: &Shared, request: &ModifyRmp) -> Answer {
    let pair = shared.objects.srqs.get(request.rmpn)?;
    if request.changes_lwm {
        pair.front.arm(request.lwm);
    }
    done()
}
