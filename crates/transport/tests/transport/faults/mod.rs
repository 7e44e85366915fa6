//! Memory that is not there: who meets it waits, until whoever keeps it says that it is there or
//! never will be.

mod lists;
mod moves;
mod pages;
mod paging;

use crate::support::craft::*;
use crate::support::{Node, PAGE, Packet, Region, Setup, send_wr};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use transport::values::*;
use transport::{FaultSide, FaultedWork, PageFault, Verdict};
use wire::Position::{First, Last, Middle, Only};
use wire::{NakCode, Operation, Syndrome};

const FIRST_PSN: u32 = 1000;
const FIRST_SENT: u32 = 5000;
const PACKET: usize = 256;

fn node() -> (Node, Region) {
    let mut setup = Setup::new(QpType::Rc);
    setup.min_rnr_timer = 17;
    let mut node = Node::new(QpType::Rc, 11, None);
    node.connect(&setup);
    let region = node.register(8 * PAGE);
    (node, region)
}

/// Takes a page away.
fn take(region: &Region, page: u64) {
    region.ram.absent.lock().unwrap().insert(page);
}

fn fault(node: &mut Node) -> PageFault {
    assert_eq!(node.told.faults.len(), 1, "one fault");
    node.told.faults.remove(0)
}

/// Whether the only answer is to come again.
fn waits(out: &[Packet]) -> bool {
    out.len() == 1 && out[0].headers.aeth.map(|aeth| aeth.syndrome) == Some(Syndrome::RnrNak(17))
}

fn write_packets(region: &Region) -> [Packet; 2] {
    let Remote { addr, rkey } = region.remote(0);
    [write(First, FIRST_PSN, PACKET).reth(addr, rkey, 300), write(Last, FIRST_PSN + 1, 44)]
}
