//! Sets of counters that queue pairs count into (PRM "Q Counters", `query_q_counter_out`): what
//! `rdma statistic` and `hw_counters` of sysfs show.

use crate::layout::bits::Field;
use crate::layout::head::{Answer, Status, done};
use crate::object::pools::Pools;
use crate::object::shared::Shared;
use crate::request::qp::QueryQCounter;
use hca::{Counter, CounterSet};
use std::sync::Arc;

/// The number in the answer that makes a set.
pub(crate) const NUMBER: Field = Field::new(0x58, 8);

/// Where the answer has each, in bits.
const PLACES: [(usize, Counter); 18] = [
    (0x80, Counter::RxWriteRequests),
    (0xc0, Counter::RxReadRequests),
    (0x100, Counter::RxAtomicRequests),
    (0x180, Counter::OutOfBuffer),
    (0x1c0, Counter::OutOfSequence),
    (0x200, Counter::DuplicateRequest),
    (0x240, Counter::RnrNakRetryErr),
    (0x280, Counter::PacketSeqErr),
    (0x2c0, Counter::ImpliedNakSeqErr),
    (0x300, Counter::LocalAckTimeoutErr),
    (0x3c0, Counter::RespLocalLengthError),
    (0x480, Counter::RespCqeError),
    (0x4a0, Counter::ReqCqeError),
    (0x500, Counter::ReqRemoteInvalidRequest),
    (0x540, Counter::ReqRemoteAccessErrors),
    (0x560, Counter::RespRemoteAccessErrors),
    (0x5a0, Counter::RetryExceededErr),
    (0x600, Counter::CqeFlushErr),
];
/// Bytes of the answer.
const ANSWER_LEN: usize = 0x100;

/// `ALLOC_Q_COUNTER`.
pub(crate) fn alloc(pools: &mut Pools, shared: &Shared) -> Answer {
    let number = pools.counter_sets.take()?;
    shared.objects.counter_sets.insert(number, Arc::new(CounterSet::default()));
    let mut answer = vec![0; 8];
    NUMBER.before_head().set(&mut answer, number.into());
    Ok(answer)
}

/// `DEALLOC_Q_COUNTER`. Queue pairs that still count there do so for nobody.
pub(crate) fn dealloc(pools: &mut Pools, shared: &Shared, number: u32) -> Answer {
    shared.objects.counter_sets.remove(number)?;
    pools.counter_sets.give_back(number)?;
    done()
}

/// `QUERY_Q_COUNTER`.
pub(crate) fn query(shared: &Shared, request: &QueryQCounter) -> Answer {
    let set = shared.objects.counter_sets.get(request.counter_set_id)?;
    let mut answer = vec![0; ANSWER_LEN - 8];
    for (bit, counter) in PLACES {
        // Of 32 bits, they begin at 0 again after the last number.
        Field::new(bit, 32).before_head().set(&mut answer, set.get(counter));
    }
    if request.clear {
        set.clear();
    }
    Ok(answer)
}

/// The set that a queue pair names; `None` for none.
pub(crate) fn named(shared: &Shared, number: u32) -> Result<Option<Arc<CounterSet>>, Status> {
    match number {
        0 => Ok(None),
        number => shared.objects.counter_sets.get(number).map(Some),
    }
}
