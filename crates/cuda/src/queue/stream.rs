//! Streams that programs make.

use super::lane::Lane;
use super::order::Kind;
use crate::{Context, Handle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A stream that a program made.
pub struct Stream {
    handle: Handle,
    id: u64,
    lane: Lane,
    flags: u32,
    priority: i32,
}

impl Stream {
    /// `CU_STREAM_NON_BLOCKING`.
    pub const NON_BLOCKING: u32 = 1;
    /// The least and the greatest priority, which make no difference here.
    pub const PRIORITIES: (i32, i32) = (0, -5);

    pub(crate) fn new(handle: Handle, context: Arc<Context>, flags: u32, priority: i32) -> Stream {
        // below are the numbers of default streams
        static IDS: AtomicU64 = AtomicU64::new(8);
        let kind = context.queues.add(flags & Self::NON_BLOCKING == 0);
        let (least, greatest) = Self::PRIORITIES;
        let (id, priority) = (IDS.fetch_add(1, Relaxed), priority.clamp(greatest, least));
        Stream { handle, id, lane: Lane::new(context, kind), flags, priority }
    }

    /// Its handle.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// A number of its own in this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where its work is queued.
    pub fn lane(&self) -> &Lane {
        &self.lane
    }

    /// `CU_STREAM_*`.
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Its priority.
    pub fn priority(&self) -> i32 {
        self.priority
    }
}

impl Drop for Stream {
    /// What was queued is still done.
    fn drop(&mut self) {
        if let Kind::Blocking(line) | Kind::Apart(line) = self.lane.kind() {
            line.close();
        }
    }
}
