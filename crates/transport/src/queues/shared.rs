//! Receive queues that several queue pairs may share, as a queue pair sees them: whoever keeps such
//! a queue implements these traits.

use super::tags::Accepted;
#[cfg(doc)]
use super::tags::TagList;
use crate::values::{Completion, PdId, RecvWr, XrcdId};
use std::sync::Arc;

/// A receive queue that several QPs share (SRQ).
pub trait SharedReceive: Send + Sync {
    /// Takes the oldest request. Called under a QP's lock.
    fn take(&self) -> Option<RecvWr>;
    /// Protection domain that the requests' keys belong to; `None` means that of the QP.
    fn pd_id(&self) -> Option<PdId> {
        None
    }
}

/// A shared receive queue with a completion queue of its own.
pub trait OwnCompletions: SharedReceive {
    /// A completion of one of its requests.
    fn received(&self, completion: Completion);
}

/// A shared receive queue of an XRC domain.
pub trait XrcReceive: OwnCompletions {
    /// Its domain.
    fn xrcd(&self) -> Option<XrcdId>;
}

/// A shared receive queue that matches tags.
pub trait TagReceive: OwnCompletions {
    /// Where a message goes, as [`TagList::accept`] says. Called under a QP's lock.
    fn accept(&self, first: &[u8], whole: bool, fetches: bool) -> Option<Accepted>;
}

/// The XRC receive queues of a device, by number.
pub trait XrcQueues {
    /// The queue with this number. Called under a QP's lock.
    fn queue(&self, number: u32) -> Option<Arc<dyn XrcReceive>>;
}

/// A receive queue that several QPs share.
#[derive(Clone)]
pub enum SharedQueue {
    /// Its completions go to the QP's.
    Plain(Arc<dyn SharedReceive>),
    /// The queue of one QP alone, which the front end keeps.
    Kept(Arc<dyn SharedReceive>),
    /// It matches tags.
    Tags(Arc<dyn TagReceive>),
}
