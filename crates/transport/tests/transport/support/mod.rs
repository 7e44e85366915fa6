//! A QP with memory, keys, queues and counters around it; and a network between two of them.

pub mod craft;
mod memory;
mod neighbour;
mod net;
mod node;
mod queues;
mod star;

pub use memory::{PAGE, Region};
pub use neighbour::Neighbour;
pub use net::{Faults, Packet, Pair};
pub use node::{Node, PD, Setup, port_one, send_wr};
pub use queues::{Loose, QUEUE_PD, TagQueue, XRCD};
pub use star::{Link, Load, Poster, Star};

/// A small seeded generator (splitmix64): the same seed gives the same run.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From `low` to `high`, both included.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// True in `percent` of cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}
