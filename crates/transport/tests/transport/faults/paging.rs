//! On-demand memory behind a responder: an RC peer has to wait while the program's mappings
//! change.

use crate::support::craft::*;
use crate::support::{Node, PD, Packet, Setup};
use mm::{AddressSpace, Mapping, ProcessPages, page_size};
use std::sync::Arc;
use transport::values::{Access, QpType, Sge};
use umem::{AccessFlags, Umem};
use wire::Position::{First, Last, Only};
use wire::Syndrome;

const FIRST_PSN: u32 = 1000;

/// A page of memory that is registered on demand with a node.
struct Paged {
    node: Node,
    space: Arc<AddressSpace>,
    map: Mapping,
    key: u32,
}

fn paged() -> Paged {
    let mut setup = Setup::new(QpType::Rc);
    setup.min_rnr_timer = 17;
    let mut node = Node::new(QpType::Rc, 11, None);
    node.connect(&setup);
    let map = Mapping::anonymous(page_size()).unwrap();
    let (space, platform) = (Arc::new(AddressSpace::default()), pcie::Platform::default());
    let hca = platform.named("peerdma0").unwrap();
    let access = AccessFlags::LOCAL_WRITE | AccessFlags::ON_DEMAND;
    let pages = Arc::new(ProcessPages::default());
    // SAFETY: only the key reaches the mapping, which outlives it.
    let memory = unsafe { mm::Sink::vouched(map.addr(), map.len()) };
    let umem = Umem::on_demand(&space, pages, memory, map.addr(), access, hca, &platform).unwrap();
    let all =
        Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let key = node.keys.insert(PD, umem, map.addr(), all).unwrap();
    Paged { node, space, map, key }
}

/// Whether the only answer is to come again.
fn waits(out: &[Packet]) -> bool {
    out.len() == 1 && out[0].headers.aeth.map(|aeth| aeth.syndrome) == Some(Syndrome::RnrNak(17))
}

#[test]
fn a_change_in_progress_makes_the_peer_wait() {
    let Paged { mut node, space, map, key } = paged();
    let at = map.addr();
    node.post_recv(1, &[Sge { addr: at, length: 512, lkey: key }]);
    let requests = |psn| {
        [
            vec![write(First, psn, 256).reth(at, key, 300), write(Last, psn + 1, 44)],
            vec![send(First, psn + 2, 256), send(Last, psn + 3, 8)],
            vec![fetch_add(psn + 4, at + 1024, key)],
            vec![read(psn + 5, at, key, 256)],
        ]
    };
    for packets in requests(FIRST_PSN) {
        for packet in packets {
            let change = space.begin(map.range()).unwrap();
            assert!(waits(&node.feed(&packet)), "{:?} does not wait", packet.operation());
            assert!(waits(&node.feed(&packet)), "{:?} does not wait again", packet.operation());
            space.end(map.range(), change);
            let out = node.feed(&packet);
            assert!(!waits(&out) && out[0].nak().is_none(), "{:?}", packet.operation());
        }
    }
    assert_eq!(node.told.received.len(), 1);
    assert_eq!(node.told.received[0].byte_len, 264);
    let mut bytes = [0; 300];
    map.source().part(at - map.addr(), 300).unwrap().read(&mut bytes).unwrap();
    assert_eq!(bytes, [0xa5; 300]);
    assert!(node.told.events.is_empty());
}

/// A change elsewhere, and one of memory that is there already, hold nobody up.
#[test]
fn other_changes_do_not_matter() {
    let Paged { mut node, space, map, key } = paged();
    let change = space.begin(map.addr() + page_size()..map.addr() + 2 * page_size()).unwrap();
    let only = write(Only, FIRST_PSN, 16).reth(map.addr(), key, 16);
    assert!(node.feed(&only)[0].is_ack());
    space.end(map.addr() + page_size()..map.addr() + 2 * page_size(), change);
}
