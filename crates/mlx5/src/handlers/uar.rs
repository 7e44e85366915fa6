//! Commands that give doorbell pages out and take them back.

use crate::layout::head::{Answer, done, number};
use crate::object::pools::Pools;
use crate::object::shared::Shared;
use std::sync::Arc;

/// `ALLOC_UAR`.
pub(crate) fn alloc(pools: &mut Pools, shared: &Shared) -> Answer {
    let page = pools.uars.take()?;
    shared.objects.uars.insert(page, Arc::default());
    number(page)
}

/// `DEALLOC_UAR`. Queues that name the page cannot be rung for from now on.
pub(crate) fn dealloc(pools: &mut Pools, shared: &Shared, page: u32) -> Answer {
    shared.objects.uars.remove(page)?;
    pools.uars.give_back(page)?;
    done()
}
