//! Commands that only ask.

use crate::handlers::modify::state_number;
use crate::keys::key_list::NULL_KEY;
use crate::layout::bits::{Field, put};
use crate::layout::head::{Answer, Status};
use crate::layout::identity::{VENDOR, VUID_LEN};
use crate::layout::limits::OWN_DEVICE;
use crate::nic::{self, Nic};
use crate::object::qp::{self, Purpose};
use crate::object::shared::Shared;
use crate::object::srq;
use crate::request::function::QueryVuid;
use hca::Device;

/// `QUERY_ISSI`: the versions of the software interface that there are, 0 and 1.
pub(crate) fn issi(current: u16) -> Answer {
    let mut answer = vec![0; 0x70 - 8];
    Field::new(0x50 - 0x40, 16).set(&mut answer, current.into());
    Field::new(0x360 - 0x40, 32).set(&mut answer, 0b11);
    Ok(answer)
}

/// What the board is called.
const BOARD: &[u8; 16] = b"PDM0000000001\0\0\0";

/// `QUERY_SPECIAL_CONTEXTS`: reserved keys.
pub(crate) fn special_contexts() -> Answer {
    const NULL: usize = 8;
    let mut answer = vec![0; 24];
    put(&mut answer, NULL, &NULL_KEY.to_be_bytes());
    Ok(answer)
}

/// `QUERY_ADAPTER`.
pub(crate) fn adapter() -> Answer {
    let mut answer = vec![0; 8 + 0x100];
    Field::new(0x40 + 0xc8, 24).set(&mut answer, 0x00_02c9);
    Field::new(0x40 + 0xf0, 16).set(&mut answer, VENDOR.into());
    put(&mut answer, 8 + 0xf0, BOARD);
    Ok(answer)
}

/// `QUERY_VUID`: the name that the adapter shares with its Data Direct function.
pub(crate) fn vuid(hca: &Device, request: &QueryVuid) -> Answer {
    const ENTRIES: Field = Field::new(0x1f0 - 0x40, 16);
    const VUID: usize = 0x200 / 8 - 8;
    let attr = hca.attr();
    if attr.vuid.is_empty() {
        return Err(Status::BadOperation);
    }
    if request.query_vfs_vuid || request.vhca_id != OWN_DEVICE {
        return Err(Status::BadParameter);
    }
    let mut answer = vec![0; VUID + VUID_LEN];
    ENTRIES.set(&mut answer, 1);
    let vuid = attr.vuid.as_bytes();
    put(&mut answer, VUID, &vuid[..vuid.len().min(VUID_LEN)]);
    Ok(answer)
}

/// `QUERY_CQ`.
pub(crate) fn cq(shared: &Shared, cqn: u32) -> Answer {
    let pair = shared.objects.cqs.get(cqn)?;
    let mut answer = vec![0; 8];
    answer.extend(pair.front.context().bytes());
    answer.resize(0x110 - 8, 0);
    Ok(answer)
}

/// `QUERY_MKEY`.
pub(crate) fn mkey(shared: &Shared, index: u32) -> Answer {
    Ok(shared.objects.mkeys.get(index)?.query())
}

/// `QUERY_XRC_SRQ`.
pub(crate) fn xrc_srq(shared: &Shared, srqn: u32) -> Answer {
    let pair = shared.objects.srqs.get(srqn)?;
    let mut context = pair.front.context().clone();
    context.set(srq::XRC_LIMIT, pair.front.limit().into());
    let mut answer = vec![0; 8];
    answer.extend(context.bytes());
    answer.resize(0x110 - 8, 0);
    Ok(answer)
}

/// `QUERY_RMP`.
pub(crate) fn pool(shared: &Shared, rmpn: u32) -> Answer {
    const LIMIT: Field = Field::new(0x180 + 0x30, 16);
    let pair = shared.objects.srqs.get(rmpn)?;
    let mut context = pair.front.context().clone();
    context.set(LIMIT, pair.front.limit().into());
    let mut answer = vec![0; 24];
    answer.extend(context.bytes());
    Ok(answer)
}

/// `QUERY_XRQ`.
pub(crate) fn tags(shared: &Shared, number: u32) -> Answer {
    let pair = shared.objects.srqs.get(number)?;
    let (delivered, handled) = pair.back.tag_counts().ok_or(Status::BadResource)?;
    let mut context = pair.front.context().clone();
    context.set(srq::TAGS_LIMIT, pair.front.limit().into());
    context.set(srq::TAGS_DELIVERED, delivered.into());
    context.set(srq::TAGS_HANDLED, handled.into());
    let mut answer = vec![0; 8];
    answer.extend(context.bytes());
    Ok(answer)
}

/// `QUERY_QP`.
pub(crate) fn qp(shared: &Shared, qpn: u32) -> Answer {
    const SEND_PSN: Field = Field::new(0x3c8, 24);
    const RECEIVE_PSN: Field = Field::new(0x4a8, 24);
    const QKEY: Field = Field::new(0x540, 32);
    /// Basic blocks of sends that were begun.
    const SENDS_BEGUN: Field = Field::new(0x5a0, 16);
    const DRAINING: u64 = 7;
    let pair = shared.objects.qps.get(qpn)?;
    let attr = pair.back.query();
    pair.rewind();
    let state = match pair.queues.purpose {
        Purpose::MemoryKeys => *pair.state.lock(),
        _ => attr.qp_state,
    };
    let mut context = pair.queues.context();
    let state = if attr.sq_draining { DRAINING } else { state_number(state) };
    for (field, value) in [
        (qp::STATE, state),
        (SENDS_BEGUN, pair.queues.sent().into()),
        (SEND_PSN, attr.sq_psn.into()),
        (RECEIVE_PSN, attr.rq_psn.into()),
        (QKEY, attr.qkey.into()),
    ] {
        context.set(field, value);
    }
    let mut answer = vec![0; 16];
    answer.extend(context.bytes());
    answer.resize(0x110 - 8, 0);
    Ok(answer)
}

/// `QUERY_VPORT_COUNTER`.
pub(crate) fn vport_counters(nic: &Nic, shared: &Shared) -> Answer {
    let [received, sent] = nic::counters::packets(shared);
    let mut answer = vec![0; 0x210 - 8];
    for (bit, value) in [
        (0x180, received.frames),
        (0x1c0, received.bytes),
        (0x200, sent.frames),
        (0x240, sent.bytes),
    ] {
        Field::new(bit - 0x40, 64).set(&mut answer, value);
    }
    nic.vport.count(&mut answer);
    Ok(answer)
}
