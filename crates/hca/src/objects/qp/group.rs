//! Short WRITEs to a neighbour's memory, several by one call to the system.

use crate::adapter::Adapter;
use crate::adapter::directory::neighbour::{Neighbour, Wanted};
use crate::sabotage::{self, Point};
use mm::MAX_PLACES;
use smallvec::SmallVec;
use transport::DirectGroup;

/// Moves the first of `group`, as many as are granted where the first is: how many that were, and
/// their bytes. `ends` are the addresses of the packets that they would be, and `qpn` whose. `None`
/// where the first is not granted.
pub(super) fn write_group(
    adapter: &Adapter,
    (neighbour, ends): (&Neighbour, u64),
    qpn: u32,
    group: &DirectGroup<'_>,
) -> Option<(usize, u64)> {
    let (pid, dest_qpn) = (adapter.directory().pid(), group.dest_qpn);
    let find = |&(remote, len): &(_, usize)| {
        let length = u32::try_from(len).ok()?;
        neighbour.find(&Wanted { pid, qpn, dest_qpn, ends, remote, length, write: true })
    };
    let first = find(group.places.first()?)?;
    let mut places: SmallVec<[(u64, usize); MAX_PLACES]> = SmallVec::new();
    places.push((first.addr(), group.places.first()?.1));
    for place in group.places.iter().take(MAX_PLACES).skip(1) {
        let Some(found) = find(place).filter(|found| found.is_with(&first)) else { break };
        places.push((found.addr(), place.1));
    }
    let bytes: usize = places.iter().map(|(_, len)| len).sum();
    let visit = neighbour.visit(&first)?;
    sabotage::reached(Point::AmidCopy);
    let moved = visit.write_each(&places, group.bytes.get(..bytes)?);
    sabotage::reached(Point::AfterCopy);
    let whole = group.whole(moved);
    let bytes = group.places.iter().take(whole).map(|(_, len)| *len as u64).sum();
    visit.count(bytes, whole as u64);
    Some((whole, bytes))
}
