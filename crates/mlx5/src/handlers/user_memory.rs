//! Commands that name a program's pages to the device.

use crate::layout::head::{Answer, Status, done, number};
use crate::machine::user_memory::UserMemory;
use crate::object::pools::Pools;
use crate::object::shared::Shared;
use crate::request::memory::CreateUmem;
use std::sync::Arc;

/// `CREATE_UMEM`.
pub(crate) fn create(pools: &mut Pools, shared: &Shared, request: &CreateUmem) -> Answer {
    let memory = Arc::new(UserMemory::new(shared.bus.memory(), request)?);
    let new = pools.user_memories.take()?;
    shared.objects.user_memories.insert(new, memory);
    number(new)
}

/// `DESTROY_UMEM`, not while a queue is there.
pub(crate) fn destroy(pools: &mut Pools, shared: &Shared, number: u32) -> Answer {
    let memory = shared.objects.user_memories.get(number)?;
    // The table has one, and this is the other.
    if Arc::strong_count(&memory) > 2 {
        return Err(Status::Busy);
    }
    shared.objects.user_memories.remove(number)?;
    pools.user_memories.give_back(number)?;
    done()
}
