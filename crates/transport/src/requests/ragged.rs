//! Requests without packets that are not of whole words, and whether the next one had better not
//! try: each costs a look at the peer's memory first, and who changes more than a byte of a word is
//! likely to go on so.

/// Refusals in a row that count. After one the next request tries all the same, after two
/// in a row two do not, and after so many 62.
const MISSES: u32 = 6;

/// How these requests have done.
#[derive(Default)]
pub(crate) struct Ragged {
    misses: u32,
    skip: u32,
}

impl Ragged {
    /// Whether the next one is to try.
    pub(crate) fn tries(&mut self) -> bool {
        let tries = self.skip == 0;
        self.skip = self.skip.saturating_sub(1);
        tries
    }

    /// One has tried.
    pub(crate) fn note(&mut self, went: bool) {
        self.misses = if went { 0 } else { (self.misses + 1).min(MISSES) };
        self.skip = if went { 0 } else { (1 << self.misses) - 2 };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many requests there are to each that tries and is refused.
    #[test]
    fn who_is_refused_tries_ever_more_seldom() {
        let mut ragged = Ragged::default();
        let mut between = Vec::new();
        for _ in 0..8 {
            let skipped = (0..100).take_while(|_| !ragged.tries()).count();
            between.push(skipped);
            ragged.note(false);
        }
        assert_eq!(between, [0, 0, 2, 6, 14, 30, 62, 62]);
        while !ragged.tries() {}
        ragged.note(true);
        assert!(ragged.tries() && ragged.tries());
    }
}
