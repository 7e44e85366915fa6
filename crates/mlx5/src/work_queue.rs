//! Commands that change queue pairs and shared receive queues.

use crate::bits::Field;
use crate::command::done;
use crate::counter_set;
use crate::function::Shared;
use crate::modify::{self, states};
use crate::opcode::{Answer, QP_2ERR, QP_2RST, SQD_RTS_QP, Status};
use crate::page_fault;
use crate::qp::Purpose;
use crate::send;
use crate::srq;
use hca::{AttrMask, QpAttr, QpState};
use std::sync::atomic::Ordering::Relaxed;

pub(crate) fn modify_qp(opcode: u16, shared: &Shared, qpn: u32, input: &[u8]) -> Answer {
    let pair = shared.objects.qps.get(qpn)?;
    let to = match opcode {
        QP_2ERR => QpState::Err,
        QP_2RST => QpState::Reset,
        _ => {
            let (from, to) = states(opcode).ok_or(Status::BadOperation)?;
            let mut state = pair.state.lock();
            let now = match pair.queues.purpose {
                Purpose::MemoryKeys => *state,
                _ => pair.back.state(),
            };
            if now != from {
                return Err(Status::BadQpState);
            }
            *state = to;
            to
        }
    };
    if pair.queues.purpose == Purpose::MemoryKeys {
        *pair.state.lock() = to;
        if to == QpState::Reset {
            pair.queues.reset();
        }
        return done();
    }
    if let Some(number) = modify::counter_set(opcode, input) {
        pair.back.count_into(counter_set::named(shared, number)?);
        pair.queues.remember(&[modify::COUNTER_SET], input);
    }
    if let Some(port) = modify::udp_source(opcode, input) {
        // An InfiniBand port has no such capability.
        shared.hca.mac().ok_or(Status::BadParameter)?;
        pair.back.set_udp_source(port)?;
        pair.queues.remember(&[modify::UDP_PORT], input);
    }
    let now = pair.back.query();
    let (attr, mask) = match to {
        QpState::Err | QpState::Reset => (QpAttr { qp_state: to, ..now }, AttrMask::STATE),
        _ => modify::attributes(shared, opcode, pair.queues.purpose.service(), now, input),
    };
    if modify::copies_memory(opcode, input) {
        pair.copies.store(true, Relaxed);
    }
    if modify::stops_at_bad_signatures(opcode, input) {
        pair.back.stop_at_bad_signatures();
    }
    if now.qp_state == QpState::Sqd {
        pair.rewind();
    }
    pair.back.modify(&attr, mask)?;
    match to {
        QpState::Reset => {
            pair.copies.store(false, Relaxed);
            page_fault::ended(shared, shared.faults.forget(qpn));
            pair.queues.reset();
        }
        QpState::Err => {
            page_fault::ended(shared, shared.faults.forget(qpn));
        }
        _ => {
            let fields = modify::remembered(opcode, pair.queues.purpose.service(), input);
            pair.queues.remember(&fields, input);
        }
    }
    if opcode == SQD_RTS_QP {
        send::read(shared, &pair);
    }
    done()
}

pub(crate) fn arm_xrc_srq(shared: &Shared, srqn: u32, input: &[u8]) -> Answer {
    const LIMIT: Field = Field::new(0x70, 16);
    shared.objects.srqs.get(srqn)?.front.arm(LIMIT.get(input) as u16);
    done()
}

/// `ARM_RQ`, of which only a queue that matches tags has need.
pub(crate) fn arm_tags(shared: &Shared, op_mod: u64, number: u32, input: &[u8]) -> Answer {
    const OF_TAGS: u64 = 2;
    if op_mod != OF_TAGS {
        return Err(Status::BadParameter);
    }
    arm_xrc_srq(shared, number, input)
}

pub(crate) fn modify_pool(shared: &Shared, rmpn: u32, input: &[u8]) -> Answer {
    const CHANGES_LIMIT: Field = Field::new(0x80 + 0x3f, 1);
    let pair = shared.objects.srqs.get(rmpn)?;
    if CHANGES_LIMIT.is_set(input) {
        pair.front.arm(srq::POOL_LIMIT.get(input) as u16);
    }
    done()
}
