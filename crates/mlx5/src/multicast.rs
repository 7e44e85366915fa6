//! `ATTACH_TO_MCG` and `DETACH_FROM_MCG`: which datagram queue pairs take what is sent to a group. On an InfiniBand port the
//! subnet's manager decides which groups reach the port at all.

use crate::command::{OBJECT, done};
use crate::function::Shared;
use crate::objects::QpPair;
use crate::opcode::{Answer, Status};
use std::sync::Arc;

const GID: std::ops::Range<usize> = 16..32;

fn member(shared: &Shared, input: &[u8]) -> Result<(Arc<QpPair>, [u8; 16]), Status> {
    let gid = input.get(GID).and_then(|gid| gid.try_into().ok());
    Ok((shared.objects.qps.get(OBJECT.get32(input))?, gid.ok_or(Status::BadInputLength)?))
}

pub(crate) fn attach(shared: &Shared, input: &[u8]) -> Answer {
    let (pair, gid) = member(shared, input)?;
    shared.hca.attach_multicast(&pair.back, gid)?;
    done()
}

pub(crate) fn detach(shared: &Shared, input: &[u8]) -> Answer {
    let (pair, gid) = member(shared, input)?;
    shared.hca.detach_multicast(&pair.back, gid)?;
    done()
}
