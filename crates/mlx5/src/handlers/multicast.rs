//! `ATTACH_TO_MCG` and `DETACH_FROM_MCG`: which datagram queue pairs take what is sent to a group.
//! On an InfiniBand port the subnet's manager decides which groups reach the port at all.

use crate::layout::head::{Answer, Status, done};
use crate::object::objects::QpPair;
use crate::object::shared::Shared;
use crate::request::qp::Membership;
use std::sync::Arc;

fn member(shared: &Shared, request: &Membership) -> Result<(Arc<QpPair>, [u8; 16]), Status> {
    let pair = shared.objects.qps.get(request.qpn)?;
    Ok((pair, request.multicast_gid.ok_or(Status::BadInputLength)?))
}

pub(crate) fn attach(shared: &Shared, request: &Membership) -> Answer {
    let (pair, gid) = member(shared, request)?;
    shared.hca.multicast().attach(&pair.back, gid)?;
    done()
}

pub(crate) fn detach(shared: &Shared, request: &Membership) -> Answer {
    let (pair, gid) = member(shared, request)?;
    shared.hca.multicast().detach(&pair.back, gid)?;
    done()
}
