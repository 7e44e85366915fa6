//! A deliberate defect, to prove that the tests would notice it: the owner's invalidations do not
//! reach the translation cache.
//!
//! Without the feature `sabotage` the question is answered "no" at compile time and nothing is left
//! in the program.

/// Whether this thread's invalidations are to be lost.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub(crate) const fn is_on() -> bool {
    false
}

#[cfg(feature = "sabotage")]
mod switched {
    use std::cell::Cell;

    thread_local! {
        static ON: Cell<bool> = const { Cell::new(false) };
    }

    pub(crate) fn is_on() -> bool {
        ON.get()
    }

    /// Runs `f` with the defect in this thread; it ends also when `f` panics.
    #[cfg(test)]
    pub(crate) fn without_invalidations<R>(f: impl FnOnce() -> R) -> R {
        struct Off;
        impl Drop for Off {
            fn drop(&mut self) {
                ON.set(false);
            }
        }
        let _off = Off;
        ON.set(true);
        f()
    }
}

#[cfg(feature = "sabotage")]
pub(crate) use switched::is_on;
#[cfg(all(test, not(loom), feature = "sabotage"))]
pub(crate) use switched::without_invalidations;
