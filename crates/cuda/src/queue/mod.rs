//! Work in order, apart from the program's threads: streams and events.
//!
//! Each stream has a line of work and, from its first piece on, a thread that does it. The order
//! between streams is made when work is queued: a piece that has to come after another stream's is
//! preceded by one that waits for it, and that was queued before; so nothing waits in a circle.
//! What waits for a value in memory may wait for ever, and gives up where its context ends or dies.

mod condition;
mod event;
mod event_handle;
mod lane;
mod line;
mod memop;
mod order;
mod shared;
mod stream;

pub use condition::Condition;
pub use event::Event;
pub use event_handle::EventHandle;
pub use lane::Lane;
pub use line::{Line, Point, Work, is_worker};
pub use memop::MemOp;
pub use order::{Kind, Queues};
pub use stream::Stream;
