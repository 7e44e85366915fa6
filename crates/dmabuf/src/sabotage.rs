//! Deliberate defects, to prove that the stress of GPU memory would notice them.
//!
//! Without the feature `sabotage` every question here is answered "no" at compile time and nothing
//! is left in the program.

/// A rule that can be broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Sabotage {
    /// An importer does not hear that the buffer has moved: it uses the old place.
    LoseInvalidation = 1,
    /// An importer enters although the buffer was taken back.
    EnterRevoked = 2,
}

/// Whether `what` is to happen now.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn on(_what: Sabotage) -> bool {
    false
}

#[cfg(feature = "sabotage")]
mod switched {
    use super::Sabotage;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

    static EVERYWHERE: AtomicU32 = AtomicU32::new(0);
    static ASKED: AtomicU32 = AtomicU32::new(0);

    /// Switches one defect on in the whole process, for three of four questions about it.
    pub fn everywhere(what: Sabotage) {
        EVERYWHERE.store(what as u32, Relaxed);
    }

    pub(crate) fn on(what: Sabotage) -> bool {
        EVERYWHERE.load(Relaxed) == what as u32 && !ASKED.fetch_add(1, Relaxed).is_multiple_of(4)
    }
}

#[cfg(feature = "sabotage")]
pub use switched::everywhere;
#[cfg(feature = "sabotage")]
pub(crate) use switched::on;
