//! Commands: how they arrive, whether their user may write them, and which handler each has.

pub(crate) mod caps;
pub(crate) mod dump;
pub(crate) mod ethernet_caps;
pub(crate) mod ethernet_users;
pub(crate) mod execute;
pub(crate) mod firmware;
pub(crate) mod ledger;
pub(crate) mod mailbox;
pub(crate) mod pages;
pub(crate) mod registers;
pub(crate) mod uctx;
