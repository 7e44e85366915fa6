//! Keeping a buffer in its place while it is used, and keeping users out while it moves: the
//! protocol over two kinds of shared words, of which nobody holds a lock while it touches memory.
//!
//! Everybody who uses a buffer counts itself in a word of its own and then looks at the buffer's
//! one state word; who moves the buffer closes the state and then looks at everybody's word. Each
//! is sequentially consistent, so either the user sees the state closed and leaves again, or the
//! mover sees the user and waits. Only one at a time closes (a lock of its own). The model tests
//! (`--cfg loom`) check these functions: nobody is inside while the bytes are copied, a user inside
//! sees the placement under which it entered, and nobody enters a revoked buffer.

use crate::control::Placement;
#[cfg(loom)]
use loom::sync::atomic as loom_atomic;
use std::sync::atomic::{AtomicU64, Ordering};

/// A 64-bit word that several processes share. All operations are sequentially consistent.
pub(crate) trait Word {
    fn load(&self) -> u64;
    fn add(&self, value: u64) -> u64;
    fn sub(&self, value: u64) -> u64;
}

macro_rules! word {
    ($atomic:ty, $order:path, $load:expr) => {
        impl Word for $atomic {
            #[inline]
            fn load(&self) -> u64 {
                $load(self)
            }
            #[inline]
            fn add(&self, value: u64) -> u64 {
                self.fetch_add(value, $order)
            }
            #[inline]
            fn sub(&self, value: u64) -> u64 {
                self.fetch_sub(value, $order)
            }
        }
    };
}

word!(AtomicU64, Ordering::SeqCst, |word: &AtomicU64| word.load(Ordering::SeqCst));

// loom takes a sequentially consistent load for an acquiring one, which may see an old value. Where
// every operation is sequentially consistent none does; nor does a read-modify-write in loom.
#[cfg(loom)]
word!(loom_atomic::AtomicU64, loom_atomic::Ordering::SeqCst, |word: &loom_atomic::AtomicU64| {
    word.fetch_add(0, loom_atomic::Ordering::SeqCst)
});

const CLOSED: u64 = 1;
const REVOKED: u64 = 2;
const HOST: u64 = 4;
const GENERATION: u64 = 8;

/// What the state word says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TurnstileState(pub(crate) u64);

impl TurnstileState {
    pub(crate) fn new(placement: Placement) -> TurnstileState {
        TurnstileState(if placement == Placement::Host { HOST } else { 0 })
    }

    /// Where the bytes are.
    #[inline]
    pub fn placement(self) -> Placement {
        if self.0 & HOST == 0 { Placement::Vram } else { Placement::Host }
    }

    /// Number of moves so far.
    #[inline]
    pub fn generation(self) -> u64 {
        self.0 / GENERATION
    }

    /// Whether the exporter has taken the buffer back for good.
    #[inline]
    pub fn is_revoked(self) -> bool {
        self.0 & REVOKED != 0
    }

    /// Whether users are kept out for the moment.
    #[inline]
    pub fn is_closed(self) -> bool {
        self.0 & CLOSED != 0
    }

    #[inline]
    fn is_open(self) -> bool {
        self.0 & (CLOSED | REVOKED) == 0
    }

    /// Users kept out.
    pub(crate) fn closed(self) -> TurnstileState {
        TurnstileState(self.0 | CLOSED)
    }

    /// Users let in again.
    pub(crate) fn reopened(self) -> TurnstileState {
        TurnstileState(self.0 & !CLOSED)
    }

    /// Nobody let in ever again.
    pub(crate) fn revoked(self) -> TurnstileState {
        TurnstileState(self.0 | REVOKED)
    }

    /// The bytes moved; still closed if it was.
    pub(crate) fn moved(self, to: Placement) -> TurnstileState {
        let host = if to == Placement::Host { HOST } else { 0 };
        TurnstileState((self.0 & !HOST | host).wrapping_add(GENERATION))
    }
}

/// Ways of using a buffer, counted in one word: bits 0 to 31, 32 to 47, 48 to 63.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// An access to the bytes, over in a moment.
    Access,
    /// A pin whose holder stops when the buffer is revoked.
    RevocablePin,
    /// A pin for as long as its holder likes.
    Pin,
}

impl Use {
    #[inline]
    pub(crate) fn unit(self) -> u64 {
        match self {
            Use::Access => 1,
            Use::RevocablePin => 1 << 32,
            Use::Pin => 1 << 48,
        }
    }
}

/// The users that one word counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Users(pub(crate) u64);

impl Users {
    pub(crate) fn accesses(self) -> u64 {
        self.0 & 0xffff_ffff
    }

    pub(crate) fn pins(self) -> u64 {
        (self.0 >> 32 & 0xffff) + self.firm_pins()
    }

    pub(crate) fn firm_pins(self) -> u64 {
        self.0 >> 48
    }
}

/// Which users are in a mover's way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heed {
    /// Accesses and every pin.
    All,
    /// Accesses and firm pins.
    Firm,
    /// Accesses.
    Accesses,
}

impl Heed {
    pub(crate) fn pins(self, users: Users) -> u64 {
        match self {
            Heed::All => users.pins(),
            Heed::Firm => users.firm_pins(),
            Heed::Accesses => 0,
        }
    }
}

/// The one who may move a buffer, as the steps of a move see it.
pub(crate) trait Moves {
    type Error;
    fn state(&self) -> TurnstileState;
    /// Wakes who waits for a change, too.
    fn set_state(&self, state: TurnstileState);
    /// Waits until none of those users is inside; the error says who is.
    fn drain(&self, heed: Heed) -> Result<(), Self::Error>;
}

/// Keeps users out, waits for those inside, copies, switches the placement in one store, and has
/// the old place overwritten. Users stay out, after an error too, until [`reopen`].
pub(crate) fn relocate<M: Moves>(
    mover: &M,
    to: Placement,
    copy: impl FnOnce() -> Result<(), M::Error>,
    overwrite: impl FnOnce(),
) -> Result<(), M::Error> {
    let closed = mover.state().closed();
    mover.set_state(closed);
    mover.drain(Heed::All)?;
    copy()?;
    mover.set_state(closed.moved(to));
    overwrite();
    Ok(())
}

/// Lets users in again that a move, be it a killed one's, has kept out.
pub(crate) fn reopen(mover: &impl Moves) {
    mover.set_state(mover.state().reopened());
}

/// Keeps users out for good, and waits for accesses in progress. A pin that came in between sees
/// the mark at its next access.
pub(crate) fn revoke<M: Moves>(mover: &M) -> Result<(), M::Error> {
    mover.set_state(mover.state().revoked());
    mover.drain(Heed::Accesses)
}

/// Begins to use the buffer: it stays where the answer says until [`leave`]. The error is the state
/// that keeps users out.
#[inline]
pub(crate) fn enter(
    state: &impl Word,
    users: &impl Word,
    how: Use,
) -> Result<TurnstileState, TurnstileState> {
    users.add(how.unit());
    let now = TurnstileState(state.load());
    if now.is_open() {
        return Ok(now);
    }
    users.sub(how.unit());
    Err(now)
}

/// Ends a use. Answers whether somebody may wait for it.
#[inline]
pub(crate) fn leave(state: &impl Word, users: &impl Word, how: Use) -> bool {
    users.sub(how.unit());
    !TurnstileState(state.load()).is_open()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_state_counts_moves_and_keeps_its_marks() {
        let state = TurnstileState::new(Placement::Vram);
        assert_eq!((state.placement(), state.generation()), (Placement::Vram, 0));
        let moved = state.closed().moved(Placement::Host);
        assert_eq!((moved.placement(), moved.generation()), (Placement::Host, 1));
        assert!(moved.is_closed() && !moved.reopened().is_closed());
        let back = moved.reopened().moved(Placement::Vram);
        assert_eq!((back.placement(), back.generation()), (Placement::Vram, 2));
        assert!(back.revoked().is_revoked() && !back.is_revoked());
    }

    #[test]
    fn each_use_is_counted_by_itself() {
        let (state, users) = (AtomicU64::new(0), AtomicU64::new(0));
        for how in [Use::Access, Use::Access, Use::RevocablePin, Use::Pin] {
            enter(&state, &users, how).unwrap();
        }
        let seen = Users(users.load(std::sync::atomic::Ordering::SeqCst));
        assert_eq!((seen.accesses(), seen.pins(), seen.firm_pins()), (2, 2, 1));
        assert!(!leave(&state, &users, Use::Access));
        state.store(1, std::sync::atomic::Ordering::SeqCst);
        assert!(leave(&state, &users, Use::Access), "the mover waits");
        assert!(enter(&state, &users, Use::Access).is_err());
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
    use loom::thread;

    struct Shared {
        state: AtomicU64,
        users: [AtomicU64; 2],
        copying: AtomicBool,
    }

    impl Shared {
        fn new() -> Arc<Shared> {
            let users = [AtomicU64::new(0), AtomicU64::new(0)];
            Arc::new(Shared { state: AtomicU64::new(0), users, copying: AtomicBool::new(false) })
        }

        fn copying(&self, now: bool) {
            self.copying.store(now, SeqCst);
        }
    }

    /// Somebody pins the buffer.
    #[derive(Debug)]
    struct Pinned;

    impl Moves for Shared {
        type Error = Pinned;

        fn state(&self) -> TurnstileState {
            TurnstileState(self.state.load(SeqCst))
        }

        fn set_state(&self, state: TurnstileState) {
            self.state.swap(state.0, SeqCst);
        }

        /// For accesses it waits without end, for pins not at all.
        fn drain(&self, heed: Heed) -> Result<(), Pinned> {
            for users in &self.users {
                loop {
                    let users = Users(Word::load(users));
                    if heed.pins(users) > 0 {
                        return Err(Pinned);
                    }
                    if users.accesses() == 0 {
                        break;
                    }
                    thread::yield_now();
                }
            }
            Ok(())
        }
    }

    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(body);
    }

    fn uses(shared: &Arc<Shared>, slot: usize) -> thread::JoinHandle<()> {
        let shared = shared.clone();
        thread::spawn(move || {
            if let Ok(seen) = enter(&shared.state, &shared.users[slot], Use::Access) {
                assert!(!shared.copying.load(SeqCst), "inside during the copy");
                let now = TurnstileState(Word::load(&shared.state));
                assert_eq!(
                    (now.placement(), now.generation()),
                    (seen.placement(), seen.generation())
                );
                leave(&shared.state, &shared.users[slot], Use::Access);
            }
        })
    }

    #[test]
    fn turnstile_nobody_is_inside_a_move() {
        model(|| {
            let shared = Shared::new();
            let users = [uses(&shared, 0), uses(&shared, 1)];
            let copy = || {
                shared.copying(true);
                Ok(())
            };
            relocate(&*shared, Placement::Host, copy, || shared.copying(false)).unwrap();
            reopen(&*shared);
            users.into_iter().for_each(|user| user.join().unwrap());
        });
    }

    #[test]
    fn turnstile_a_pin_is_seen_or_refused() {
        model(|| {
            let shared = Shared::new();
            let other = shared.clone();
            let pins = thread::spawn(move || {
                enter(&other.state, &other.users[0], Use::Pin).map(TurnstileState::generation).ok()
            });
            let moved = relocate(&*shared, Placement::Host, || Ok(()), || ());
            reopen(&*shared);
            assert!(moved.is_ok() || shared.state().generation() == 0, "moved under a pin");
            if let Some(generation) = pins.join().unwrap() {
                let now = TurnstileState(Word::load(&shared.state)).generation();
                assert_eq!(generation, now, "moved under a pin");
            }
        });
    }

    #[test]
    fn turnstile_nobody_enters_after_a_revoke() {
        model(|| {
            let shared = Shared::new();
            let user = uses(&shared, 0);
            revoke(&*shared).unwrap();
            shared.copying(true);
            assert!(enter(&shared.state, &shared.users[1], Use::Access).is_err());
            user.join().unwrap();
        });
    }
}
