//! The executor's checks of a one-sided operation on what a neighbour has published of itself.

use crate::keys::check_rights;
use crate::values::{Access, MAX_MESSAGE, Remote};

/// A key of another device, and what the queue pair there lets its peer do.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    /// What the queue pair lets its peer do.
    pub qp_access: Access,
    /// Whether queue pair and key are of one protection domain.
    pub same_pd: bool,
    /// Rights of the key.
    pub access: Access,
    /// Address of its first byte, as peers name it.
    pub iova: u64,
    /// Its bytes.
    pub len: u64,
}

impl Published {
    /// Where in the key's memory an RDMA WRITE, or a READ, of `length` bytes begins; `None` if the
    /// executor would refuse it, or if there is nothing to move.
    pub fn check(&self, remote: Remote, length: u32, write: bool) -> Option<u64> {
        let right = if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        check_rights(self.same_pd, self.access, right).ok()?;
        let offset = remote.addr.checked_sub(self.iova)?;
        let inside = offset.checked_add(length.into())? <= self.len;
        let granted = self.qp_access.contains(right) && (1..=MAX_MESSAGE).contains(&length);
        (inside && granted).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_the_executor_refuses_is_refused() {
        let all = Access::REMOTE_WRITE | Access::REMOTE_READ;
        let good =
            Published { qp_access: all, same_pd: true, access: all, iova: 0x1000, len: 0x100 };
        let at = |addr| Remote { addr, rkey: 5 };
        assert_eq!(good.check(at(0x1000), 0x100, true), Some(0));
        assert_eq!(good.check(at(0x10ff), 1, false), Some(0xff));
        for (addr, length) in [(0x0fff, 1), (0x1000, 0x101), (0x1100, 1), (0x1000, 0)] {
            assert_eq!(good.check(at(addr), length, true), None, "{addr:#x} {length}");
        }
        assert_eq!(good.check(at(u64::MAX), 1, true), None);
        let whole = Published { iova: 0, len: u64::MAX, ..good };
        assert_eq!(whole.check(at(1), MAX_MESSAGE + 1, true), None);
        assert_eq!(whole.check(at(u64::MAX), u32::MAX, true), None);
        let reads = Access::REMOTE_READ;
        for weak in [
            Published { same_pd: false, ..good },
            Published { access: reads, ..good },
            Published { qp_access: reads, ..good },
        ] {
            assert_eq!(weak.check(at(0x1000), 1, true), None, "{weak:?}");
        }
        assert!(Published { access: reads, ..good }.check(at(0x1000), 1, false).is_some());
    }
}
