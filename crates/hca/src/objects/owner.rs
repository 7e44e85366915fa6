//! What a queue asks of the whole device, which stands above it.

use crate::adapter::Adapter;
use crate::objects::cq::Cq;
use crate::objects::door::Door;
use std::sync::Arc;

/// The device that an object was made on.
pub(crate) trait Owner: Send + Sync {
    /// What its objects share.
    fn adapter(&self) -> &Arc<Adapter>;

    /// One turn of progress in the caller's thread, unless another thread is at it.
    fn progress(&self);

    /// The program is about to wait for a completion.
    fn program_sleeps(&self);

    /// Runs `call` while nobody receives, and what was received is answered.
    fn between_turns(&self, call: &mut dyn FnMut());

    /// Gives every queue pair that completes at `cq` a turn soon.
    fn rouse_users_of(&self, cq: &Cq);

    /// The door of the queue pair with this number.
    fn door(&self, number: u32) -> Option<Arc<Door>>;

    /// A queue pair is gone: nothing names it any more. `takes_frames` says whether it was of raw
    /// packets.
    fn forget_qp(&self, number: u32, takes_frames: bool);
}
