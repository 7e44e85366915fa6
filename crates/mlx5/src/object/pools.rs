//! The numbers that commands give to new objects, by kind.

use crate::keys::psv;
use crate::machine::table::Numbers;
use crate::object::uar;
use hca::DeviceAttr;

/// Protection domains, as a logarithm.
pub(crate) const LOG_MAX_PDS: u64 = 15;
/// XRC domains, as a logarithm.
pub(crate) const LOG_MAX_XRCDS: u64 = 15;
/// Sets of counters; a queue pair names its own in 8 bits, and 0 is none.
pub(crate) const MAX_COUNTER_SETS: u32 = 255;
/// Objects of user memory, as a logarithm.
pub(crate) const LOG_MAX_USER_MEMORIES: u64 = 14;

/// Numbers that nobody has.
pub(crate) struct Pools {
    pub(crate) uars: Numbers,
    pub(crate) transport_domains: Numbers,
    pub(crate) pds: Numbers,
    pub(crate) xrcds: Numbers,
    pub(crate) cqs: Numbers,
    /// Shared receive queues, receive pools and queues that match tags.
    pub(crate) srqs: Numbers,
    pub(crate) counter_sets: Numbers,
    pub(crate) psvs: Numbers,
    pub(crate) user_memories: Numbers,
}

impl Pools {
    /// All that a device with these attributes has are free.
    pub(crate) fn new(attr: &DeviceAttr) -> Pools {
        Pools {
            uars: Numbers::within(uar::PAGES),
            transport_domains: Numbers::within(1..1 << 16),
            pds: Numbers::within(1..1 << LOG_MAX_PDS),
            xrcds: Numbers::within(1..1 << LOG_MAX_XRCDS),
            cqs: Numbers::within(1..attr.max_cq),
            srqs: Numbers::within(1..1 << 24),
            counter_sets: Numbers::within(1..MAX_COUNTER_SETS + 1),
            psvs: Numbers::within(psv::ALL),
            user_memories: Numbers::within(1..1 << LOG_MAX_USER_MEMORIES),
        }
    }
}
