//! Deliberate defects: those of the transport, turns of progress that go wrong, and the ends of
//! processes at points of what they share, to prove that a program outlives them.
//!
//! Without the feature `sabotage` every question here is answered "no" at compile time and nothing
//! is left in the program.

pub use shm::sabotage::*;
pub use transport::sabotage::*;

/// What a turn of progress does once it has taken payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum SpoiledTurn {
    /// It panics.
    Panics = 1,
    /// It never ends, and keeps its place.
    Stands = 2,
}

#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn turn_took(_bytes: usize) {}

#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn turns_are_spoiled() -> bool {
    false
}

#[cfg(feature = "sabotage")]
mod switched {
    use super::SpoiledTurn;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    static SPOILED: AtomicU32 = AtomicU32::new(0);

    /// Spoils every turn of the process that takes payload.
    pub fn spoil_turns(how: SpoiledTurn) {
        SPOILED.store(how as u32, Relaxed);
    }

    /// Whether they are: what a turn has taken is not answered before that.
    pub(crate) fn turns_are_spoiled() -> bool {
        SPOILED.load(Relaxed) != 0
    }

    pub(crate) fn turn_took(bytes: usize) {
        let how = SPOILED.load(Relaxed);
        if bytes > 0 && how == SpoiledTurn::Panics as u32 {
            panic!("a turn that is to panic");
        }
        while bytes > 0 && how == SpoiledTurn::Stands as u32 {
            std::thread::park();
        }
    }
}

#[cfg(feature = "sabotage")]
pub use switched::spoil_turns;
#[cfg(feature = "sabotage")]
pub(crate) use switched::{turn_took, turns_are_spoiled};
