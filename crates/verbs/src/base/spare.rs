//! What this library does where the system has no memory: its allocator keeps some back, and verbs
//! that make objects refuse.

use crate::base::ffi::{Errno, Res};
use engine_thread::Sparing;

#[global_allocator]
static ALLOCATOR: Sparing = Sparing;

/// For verbs that make something: ENOMEM while what was kept back is in use and the system still
/// has no memory.
pub fn check() -> Res<()> {
    if engine_thread::may_make() { Ok(()) } else { Err(Errno(libc::ENOMEM)) }
}
