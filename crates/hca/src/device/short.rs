//! Turns of progress that take a few short messages and nothing else, as the polls of programs that
//! send each other one at a time do: without what a [`turn`](super::turn) has to be ready for.

use super::looks::Looks;
use super::turn::Done;
use crate::adapter::Adapter;
use crate::adapter::rings::Incoming;
use crate::objects::qp::Qp;
use crate::objects::qp_table::Qps;
use std::sync::Arc;
use std::time::{Duration, Instant};
use transport::{Count, Counter};
use wire::Short;

/// Packets that one takes before it looks at what a turn is for.
const PACKETS: usize = 32;
/// The same as a time, where a message does not take less than a microsecond, as where its page has
/// to come first; and packets between two looks at the clock.
const LIMIT: Duration = Duration::from_micros(50);
const CLOCK: usize = 8;

/// What was taken, and whether that is all that there is to do but for sockets.
pub(super) struct Taken {
    pub(super) done: Done,
    pub(super) is_all: bool,
}

/// Takes what waits in the rings as far as it is short. The queue pair that took something last
/// is nearly always the one that does next.
pub(super) fn take_short(
    adapter: &Adapter,
    qps: &Qps,
    rings: &mut Incoming,
    looks: &mut Looks,
    latest: &mut Option<Arc<Qp>>,
) -> Taken {
    let (now, now_ns) = looks.time(|| {
        let now = Instant::now();
        (now, adapter.ns_of(now))
    });
    let (mut packets, mut bytes) = (0, 0);
    let is_late =
        |packets: usize| packets > 0 && packets.is_multiple_of(CLOCK) && now.elapsed() >= LIMIT;
    while packets < PACKETS && !is_late(packets) {
        let taken = rings.take_short(|ends, short| {
            let qpn = short.dest_qp();
            if latest.as_ref().is_none_or(|qp| qp.number() != qpn) {
                *latest = qps.find(qpn);
            }
            let qp = latest.as_ref().filter(|_| adapter.takes(ends.dst));
            let taken = qp.is_some_and(|qp| qp.take_short(adapter, ends, short, now));
            match short {
                _ if !taken => *latest = None,
                Short::Send(_, payload) => bytes += payload.len(),
                Short::Ack(_) => {}
            }
            taken
        });
        if !taken {
            break;
        }
        packets += 1;
    }
    if packets > 0 {
        looks.came_by_ring();
        adapter.directory().count(Counter::RcvdPackets, packets as u64);
        adapter.directory().count(Counter::RcvdBytes, bytes as u64);
    }
    let is_more = rings.has_more() || looks.were_long_ago(now_ns);
    let is_all = !is_more && !adapter.timers.are_due(now_ns);
    Taken { done: Done { bytes, by_ring: packets, ended_ns: now_ns }, is_all }
}
