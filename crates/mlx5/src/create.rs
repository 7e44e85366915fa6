//! Commands that make and end objects of the HCA.

use crate::bits::Field;
use crate::command::{Commands, done, number};
use crate::cq::{self, Cq, SignatureReports};
use crate::function::Shared;
use crate::mkey::KeyObject;
use crate::objects::{CqPair, QpPair, SrqPair};
use crate::opcode::{Answer, Status};
use crate::page_fault;
use crate::qp::{self, Purpose, Queues, Receives};
use crate::srq::{self, Srq};
use crate::uar;
use crate::umr::{Changer, OwnWork};
use crate::user_memory::Places;
use hca::{QpCap, QpInit, QpType, SrqKind, TmCap, XrcSrq, XrcdInit};
use std::sync::Arc;

pub(crate) fn pd(commands: &mut Commands, shared: &Shared) -> Answer {
    let pd = shared.hca.alloc_pd()?;
    let pdn = commands.pds.take()?;
    shared.objects.pds.insert(pdn, pd);
    number(pdn)
}

pub(crate) fn dealloc_pd(commands: &mut Commands, shared: &Shared, pdn: u32) -> Answer {
    shared.objects.pds.get(pdn)?.dealloc()?;
    shared.objects.pds.remove(pdn)?;
    commands.pds.give_back(pdn)?;
    done()
}

pub(crate) fn xrcd(commands: &mut Commands, shared: &Shared) -> Answer {
    let xrcd = shared.hca.open_xrcd(XrcdInit { inode: None, create: true, exclusive: false })?;
    let xrcdn = commands.xrcds.take()?;
    shared.objects.xrcds.insert(xrcdn, xrcd);
    number(xrcdn)
}

pub(crate) fn dealloc_xrcd(commands: &mut Commands, shared: &Shared, xrcdn: u32) -> Answer {
    shared.objects.xrcds.get(xrcdn)?.close()?;
    shared.objects.xrcds.remove(xrcdn)?;
    commands.xrcds.give_back(xrcdn)?;
    done()
}

pub(crate) fn mkey(shared: &Shared, input: &[u8]) -> Answer {
    let object = KeyObject::create(shared, input)?;
    let index = object.key() >> 8;
    shared.objects.mkeys.insert(index, Arc::new(object));
    number(index)
}

pub(crate) fn destroy_mkey(shared: &Shared, index: u32) -> Answer {
    shared.objects.mkeys.remove(index)?.destroy(shared)?;
    done()
}

pub(crate) fn cq(commands: &mut Commands, shared: &Shared, input: &[u8]) -> Answer {
    let uar = uar::named(shared, input, cq::CONTEXT_BIT)?;
    let cqn = commands.cqs.take()?;
    let names = &shared.objects.names;
    let places = Places::new(shared);
    let made = Cq::new(cqn, &places, &shared.eqs, names, uar, input).and_then(|front| {
        let back = shared.hca.create_cq_to(front.clone())?;
        Ok(CqPair { front, back })
    });
    match made {
        Ok(pair) => {
            shared.objects.cqs.insert(cqn, pair);
            number(cqn)
        }
        Err(status) => {
            commands.cqs.give_back(cqn)?;
            Err(status)
        }
    }
}

pub(crate) fn destroy_cq(commands: &mut Commands, shared: &Shared, cqn: u32) -> Answer {
    let CqPair { front, back } = shared.objects.cqs.get(cqn)?;
    // The status that the manual gives for work queues which still complete to it.
    if front.is_in_use() {
        return Err(Status::BadResourceState);
    }
    back.destroy().map_err(|error| match error {
        hca::Error::Busy(_) => Status::BadResourceState,
        other => other.into(),
    })?;
    front.end();
    shared.objects.cqs.remove(cqn)?;
    commands.cqs.give_back(cqn)?;
    done()
}

pub(crate) fn xrc_srq(commands: &mut Commands, shared: &Shared, input: &[u8]) -> Answer {
    let pd = shared.objects.pds.get(srq::XRC_PD.get32(input))?;
    let xrcd = shared.objects.xrcds.get(srq::XRC_DOMAIN.get32(input))?;
    let cq = shared.objects.cqs.get(srq::XRC_CQ.get32(input))?.back;
    let front = Arc::new(Srq::of_xrc(&Places::new(shared), &shared.eqs, input)?);
    let kind = SrqKind::Xrc(XrcSrq { xrcd, cq });
    let back = shared.hca.create_srq_over(&pd, kind, front.clone())?;
    let srqn = back.number().ok_or(Status::Internal)?;
    if let Err(status) = commands.srqs.claim(srqn) {
        // A pool has the number; the HCA never gives it to another queue at once.
        back.destroy()?;
        return Err(status);
    }
    front.set_number(srqn);
    shared.objects.names.name_srq(srqn, srq::XRC_NAME.get32(input));
    shared.objects.srqs.insert(srqn, SrqPair { front, back });
    number(srqn)
}

pub(crate) fn pool(commands: &mut Commands, shared: &Shared, input: &[u8]) -> Answer {
    let pd = shared.objects.pds.get(srq::POOL_PD.get32(input))?;
    let front = Arc::new(Srq::of_pool(&Places::new(shared), &shared.eqs, input)?);
    let back = shared.hca.create_srq_over(&pd, SrqKind::Basic, front.clone())?;
    numbered(commands, shared, SrqPair { front, back })
}

/// A queue that matches tags.
pub(crate) fn tags(commands: &mut Commands, shared: &Shared, input: &[u8]) -> Answer {
    let pd = shared.objects.pds.get(srq::TAGS_PD.get32(input))?;
    let cq = shared.objects.cqs.get(srq::TAGS_CQ.get32(input))?.back;
    let front = Arc::new(Srq::of_tags(&Places::new(shared), &shared.eqs, input)?);
    let max_ops = shared.hca.attr().max_tag_ops;
    let cap = TmCap { max_num_tags: srq::tagged_buffers(input), max_ops };
    let back = shared.hca.create_srq_over(&pd, SrqKind::TagMatching(cq, cap), front.clone())?;
    let answer = numbered(commands, shared, SrqPair { front: front.clone(), back })?;
    shared.objects.names.name_srq(front.number(), srq::TAGS_NAME.get32(input));
    Ok(answer)
}

/// Gives a queue a number that no other has.
fn numbered(commands: &mut Commands, shared: &Shared, pair: SrqPair) -> Answer {
    let given = commands.srqs.take()?;
    pair.front.set_number(given);
    shared.objects.srqs.insert(given, pair);
    number(given)
}

pub(crate) fn destroy_srq(commands: &mut Commands, shared: &Shared, srqn: u32) -> Answer {
    shared.objects.srqs.get(srqn)?.back.destroy()?;
    shared.objects.srqs.remove(srqn)?;
    shared.objects.names.forget_srq(srqn);
    commands.srqs.give_back(srqn)?;
    done()
}

pub(crate) fn qp(shared: &Arc<Shared>, input: &[u8]) -> Answer {
    let objects = &shared.objects;
    let uar =
        if qp::sends(input) { Some(uar::named(shared, input, qp::CONTEXT_BIT)?) } else { None };
    let queues = Arc::new(Queues::new(&Places::new(shared), uar, input)?);
    let pd = match queues.purpose {
        // It belongs to no domain: the keys that it changes name theirs.
        Purpose::MemoryKeys => shared.hca.alloc_pd()?,
        _ => objects.pds.get(qp::PD.get32(input))?,
    };
    let service = queues.purpose.service();
    let cq = |field: Field| objects.cqs.get(field.get32(input));
    let send_cq = queues.purpose.sends_complete().then(|| cq(qp::SEND_CQ)).transpose()?;
    let receives = queues.purpose.receives_complete();
    let recv_cq = receives.then(|| cq(qp::RECEIVE_CQ)).transpose()?;
    let xrcd = match service {
        QpType::XrcRecv => Some(objects.xrcds.get(qp::XRC_DOMAIN.get32(input))?),
        _ => None,
    };
    let srq = match queues.receives {
        Receives::Shared(number) if receives => Some(objects.srqs.get(number)?.back),
        _ => None,
    };
    let limits = shared.hca.attr();
    let cap = QpCap {
        max_send_wr: queues.max_sends().min(limits.max_qp_wr),
        max_recv_wr: 0,
        max_send_sge: limits.max_sge,
        max_recv_sge: limits.max_sge,
        max_inline_data: limits.max_inline_data,
    };
    let own = queues.receives == Receives::Own && receives;
    let pd_of_keys = (queues.purpose != Purpose::MemoryKeys).then(|| pd.id());
    let changer = Changer { pd: pd_of_keys, fast_registers: queues.fast_registers };
    let work = Arc::new(OwnWork::new(shared, queues.clone(), changer));
    let findings = SignatureReports {
        sends: send_cq.as_ref().map(|cq| cq.front.clone()),
        receives: recv_cq.as_ref().map(|cq| cq.front.clone()),
    };
    let init = QpInit {
        send_cq: send_cq.as_ref().map(|cq| cq.back.clone()),
        recv_cq: recv_cq.map(|cq| cq.back),
        xrcd,
        srq,
        receives: own.then(|| queues.clone() as _),
        custom: Some(work.clone()),
        signatures: Some(Arc::new(findings)),
        management: queues.purpose.management(),
        blocks_own_multicast: qp::BLOCKS_OWN_MULTICAST.is_set(input),
        cap,
        // What waits is in the guest's memory.
        set_aside: false,
        ..QpInit::new(service)
    };
    let back = shared.hca.create_qp(&pd, init)?;
    let qpn = back.number();
    objects.names.name_qp(qpn, qp::NAME.get32(input));
    let pair = QpPair::new(queues, back, send_cq.map(|cq| cq.front), work);
    objects.qps.insert(qpn, pair);
    number(qpn)
}

pub(crate) fn destroy_qp(shared: &Shared, qpn: u32) -> Answer {
    shared.objects.qps.remove(qpn)?.destroy();
    shared.objects.names.forget_qp(qpn);
    page_fault::ended(shared, shared.faults.forget(qpn));
    done()
}
