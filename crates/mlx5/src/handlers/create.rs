//! Commands that make and end objects of the HCA.

use crate::keys::changer::Changer;
use crate::keys::mkey::KeyObject;
use crate::layout::head::{Answer, Status, done, number};
use crate::object::cq::{Cq, SignatureReports};
use crate::object::objects::{CqPair, QpPair, SrqPair};
use crate::object::page_fault;
use crate::object::pools::Pools;
use crate::object::qp::{Purpose, Queues, Receives};
use crate::object::shared::Shared;
use crate::object::srq::{self, Srq};
use crate::request::cq::CreateCq;
use crate::request::memory::CreateMkey;
use crate::request::qp::CreateQp;
use crate::request::srq::{CreateRmp, CreateXrcSrq, CreateXrq};
use crate::work::umr::OwnWork;
use hca::{QpCap, QpInit, QpType, SrqKind, TmCap, XrcSrq, XrcdInit};
use std::sync::Arc;

pub(crate) fn pd(pools: &mut Pools, shared: &Shared) -> Answer {
    let pd = shared.hca.alloc_pd()?;
    let pdn = pools.pds.take()?;
    shared.objects.pds.insert(pdn, pd);
    number(pdn)
}

pub(crate) fn dealloc_pd(pools: &mut Pools, shared: &Shared, pdn: u32) -> Answer {
    shared.objects.pds.get(pdn)?.dealloc()?;
    shared.objects.pds.remove(pdn)?;
    pools.pds.give_back(pdn)?;
    done()
}

pub(crate) fn xrcd(pools: &mut Pools, shared: &Shared) -> Answer {
    let xrcd = shared.hca.open_xrcd(XrcdInit { inode: None, create: true, exclusive: false })?;
    let xrcdn = pools.xrcds.take()?;
    shared.objects.xrcds.insert(xrcdn, xrcd);
    number(xrcdn)
}

pub(crate) fn dealloc_xrcd(pools: &mut Pools, shared: &Shared, xrcdn: u32) -> Answer {
    shared.objects.xrcds.get(xrcdn)?.close()?;
    shared.objects.xrcds.remove(xrcdn)?;
    pools.xrcds.give_back(xrcdn)?;
    done()
}

pub(crate) fn mkey(shared: &Shared, request: &CreateMkey) -> Answer {
    let object = KeyObject::create(shared, request)?;
    let index = object.key() >> 8;
    shared.objects.mkeys.insert(index, Arc::new(object));
    number(index)
}

pub(crate) fn destroy_mkey(shared: &Shared, index: u32) -> Answer {
    shared.objects.mkeys.remove(index)?.destroy(shared)?;
    done()
}

pub(crate) fn cq(pools: &mut Pools, shared: &Shared, request: &CreateCq) -> Answer {
    let uar = shared.objects.uars.get(request.uar_page)?;
    let cqn = pools.cqs.take()?;
    let names = &shared.objects.names;
    let places = shared.queue_memory();
    let made = Cq::new(cqn, &places, &shared.eqs, names, uar, request).and_then(|front| {
        let back = shared.hca.create_cq_to(front.clone())?;
        Ok(CqPair { front, back })
    });
    match made {
        Ok(pair) => {
            shared.objects.cqs.insert(cqn, pair);
            number(cqn)
        }
        Err(status) => {
            pools.cqs.give_back(cqn)?;
            Err(status)
        }
    }
}

pub(crate) fn destroy_cq(pools: &mut Pools, shared: &Shared, cqn: u32) -> Answer {
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
    pools.cqs.give_back(cqn)?;
    done()
}

pub(crate) fn xrc_srq(pools: &mut Pools, shared: &Shared, request: &CreateXrcSrq) -> Answer {
    let pd = shared.objects.pds.get(request.pd)?;
    let xrcd = shared.objects.xrcds.get(request.xrcd)?;
    let cq = shared.objects.cqs.get(request.cqn)?.back;
    let front = Arc::new(Srq::of_xrc(&shared.queue_memory(), &shared.eqs, request)?);
    let kind = SrqKind::Xrc(XrcSrq { xrcd, cq });
    let back = shared.hca.create_srq_over(&pd, kind, front.clone())?;
    let srqn = back.number().ok_or(Status::Internal)?;
    if let Err(status) = pools.srqs.claim(srqn) {
        // A pool has the number; the HCA never gives it to another queue at once.
        back.destroy()?;
        return Err(status);
    }
    front.set_number(srqn);
    shared.objects.names.name_srq(srqn, request.user_index);
    shared.objects.srqs.insert(srqn, SrqPair { front, back });
    number(srqn)
}

pub(crate) fn pool(pools: &mut Pools, shared: &Shared, request: &CreateRmp) -> Answer {
    let pd = shared.objects.pds.get(request.wq.pd)?;
    let front = Arc::new(Srq::of_pool(&shared.queue_memory(), &shared.eqs, request)?);
    let back = shared.hca.create_srq_over(&pd, SrqKind::Basic, front.clone())?;
    numbered(pools, shared, SrqPair { front, back })
}

/// A queue that matches tags.
pub(crate) fn tags(pools: &mut Pools, shared: &Shared, request: &CreateXrq) -> Answer {
    let pd = shared.objects.pds.get(request.wq.pd)?;
    let cq = shared.objects.cqs.get(request.cqn)?.back;
    let front = Arc::new(Srq::of_tags(&shared.queue_memory(), &shared.eqs, request)?);
    let max_ops = shared.hca.attr().max_tag_ops;
    let cap = TmCap { max_num_tags: srq::tagged_buffers(request), max_ops };
    let back = shared.hca.create_srq_over(&pd, SrqKind::TagMatching(cq, cap), front.clone())?;
    let answer = numbered(pools, shared, SrqPair { front: front.clone(), back })?;
    shared.objects.names.name_srq(front.number(), request.user_index);
    Ok(answer)
}

/// Gives a queue a number that no other has.
fn numbered(pools: &mut Pools, shared: &Shared, pair: SrqPair) -> Answer {
    let given = pools.srqs.take()?;
    pair.front.set_number(given);
    shared.objects.srqs.insert(given, pair);
    number(given)
}

pub(crate) fn destroy_srq(pools: &mut Pools, shared: &Shared, srqn: u32) -> Answer {
    shared.objects.srqs.get(srqn)?.back.destroy()?;
    shared.objects.srqs.remove(srqn)?;
    shared.objects.names.forget_srq(srqn);
    pools.srqs.give_back(srqn)?;
    done()
}

pub(crate) fn qp(shared: &Arc<Shared>, request: &CreateQp) -> Answer {
    let objects = &shared.objects;
    let uar = (!request.no_sq).then(|| objects.uars.get(request.uar_page)).transpose()?;
    let queues = Arc::new(Queues::new(&shared.queue_memory(), uar, request)?);
    let pd = match queues.purpose {
        // It belongs to no domain: the keys that it changes name theirs.
        Purpose::MemoryKeys => shared.hca.alloc_pd()?,
        _ => objects.pds.get(request.pd)?,
    };
    let service = queues.purpose.service();
    let cq = |number| objects.cqs.get(number);
    let send_cq = queues.purpose.sends_complete().then(|| cq(request.cqn_snd)).transpose()?;
    let receives = queues.purpose.receives_complete();
    let recv_cq = receives.then(|| cq(request.cqn_rcv)).transpose()?;
    let xrcd = match service {
        QpType::XrcRecv => Some(objects.xrcds.get(request.xrcd)?),
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
        blocks_own_multicast: request.block_lb_mc,
        cap,
        // What waits is in the guest's memory.
        set_aside: false,
        ..QpInit::new(service)
    };
    let back = shared.hca.create_qp(&pd, init)?;
    let qpn = back.number();
    objects.names.name_qp(qpn, request.user_index);
    let pair =
        QpPair::new(queues, back, send_cq.map(|cq| cq.front), changer, Arc::downgrade(shared));
    objects.qps.insert(qpn, pair);
    number(qpn)
}

pub(crate) fn destroy_qp(shared: &Shared, qpn: u32) -> Answer {
    shared.objects.qps.remove(qpn)?.destroy();
    shared.objects.names.forget_qp(qpn);
    page_fault::ended(&shared.hca, shared.faults.forget(qpn));
    done()
}
