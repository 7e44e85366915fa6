//! How often answers are repeated to peers that may not exist.
//!
//! A request names how often and how soon its answer is to be repeated, and its source address may
//! be forged. So repeats of all conversations together go out at a limited rate; those beyond it go
//! later, none is left out.

use std::time::{Duration, Instant};

/// Repeats in one [`WINDOW`].
const MOST: u32 = 256;
const WINDOW: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Pace {
    /// When the window began, and what went out since.
    window: Option<(Instant, u32)>,
}

impl Pace {
    /// Takes leave to repeat one answer.
    ///
    /// # Errors
    /// When to ask again.
    pub(crate) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let (begin, sent) = self.window.filter(|(at, _)| now < *at + WINDOW).unwrap_or((now, 0));
        if sent == MOST {
            return Err(begin + WINDOW);
        }
        self.window = Some((begin, sent + 1));
        Ok(())
    }
}
