//! What user space calls its queues (`user_index`): completions name a queue so, and a driver finds
//! it without its number.
//!
//! A queue that belongs to the kernel's driver has no such name, which it says by [`NONE`]; its
//! completions carry the number of the shared receive queue, if there is one.

use engine_thread::{read, write};
use std::collections::HashMap;
use std::sync::RwLock;

/// The name that says that there is none.
const NONE: u32 = 0xff_ffff;

#[derive(Default)]
struct Tables {
    qps: HashMap<u32, u32>,
    /// Shared receive queues of XRC and those that match tags, whose receives are theirs whatever
    /// queue pair they come by.
    srqs: HashMap<u32, u32>,
}

/// The names of all queues that have one.
#[derive(Default)]
pub(crate) struct Names(RwLock<Tables>);

impl Names {
    fn change(&self, change: impl FnOnce(&mut Tables)) {
        change(&mut write(&self.0));
    }

    /// Names queue pair `number`; user space calls it `name`.
    pub(crate) fn name_qp(&self, number: u32, name: u32) {
        if name != NONE {
            self.change(|tables| _ = tables.qps.insert(number, name));
        }
    }

    /// Names shared receive queue `number` of XRC; user space calls it `name`.
    pub(crate) fn name_srq(&self, number: u32, name: u32) {
        if name != NONE {
            self.change(|tables| _ = tables.srqs.insert(number, name));
        }
    }

    /// Drops the name of a queue pair that is gone.
    pub(crate) fn forget_qp(&self, number: u32) {
        self.change(|tables| _ = tables.qps.remove(&number));
    }

    /// Drops the name of a shared receive queue that is gone.
    pub(crate) fn forget_srq(&self, number: u32) {
        self.change(|tables| _ = tables.srqs.remove(&number));
    }

    /// Drops all names.
    pub(crate) fn clear(&self) {
        self.change(|tables| *tables = Tables::default());
    }

    /// What a completion by queue pair `qpn` carries, of a request from shared receive queue `srqn`
    /// or, with 0, from none.
    pub(crate) fn of(&self, qpn: u32, srqn: u32) -> u32 {
        let tables = read(&self.0);
        let name = tables.srqs.get(&srqn).or_else(|| tables.qps.get(&qpn));
        name.copied().unwrap_or(srqn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_queue_of_xrc_counts_before_the_queue_pair() {
        let names = Names::default();
        names.name_qp(0x4001, 7);
        names.name_srq(3, 8);
        names.name_srq(4, NONE);
        assert_eq!(
            [(0x4001, 0), (0x4001, 3), (0x4001, 4)].map(|(qp, srq)| names.of(qp, srq)),
            [7, 8, 7]
        );
        assert_eq!(
            [(0x4002, 0), (0x4002, 3), (0x4002, 4)].map(|(qp, srq)| names.of(qp, srq)),
            [0, 8, 4]
        );
        names.forget_qp(0x4001);
        names.forget_srq(3);
        assert_eq!((names.of(0x4001, 0), names.of(0x4001, 3)), (0, 3));
    }
}
