//! What each command about an object does.

pub(crate) mod counter_set;
pub(crate) mod create;
pub(crate) mod general_object;
pub(crate) mod modify;
pub(crate) mod modify_cq;
pub(crate) mod multicast;
pub(crate) mod page_fault;
pub(crate) mod psv;
pub(crate) mod query;
pub(crate) mod uar;
pub(crate) mod user_memory;
pub(crate) mod work_queue;
