//! The buffers that a neighbour's memory is in, as this process keeps them in their places while it
//! copies, and has them mapped if it uses them often.

use super::Entry;
use super::asked::Asked;
use super::keys::ShownBuffer;
use super::ways::{OFTEN, Seen, Way};
use dmabuf::{Outsider, Refused};
use engine_thread::lock;
use mm::NotLent;
use shm::Shm;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a buffer that cannot be used now is not asked for again: that costs as much as many
/// packets.
const PAUSE: Duration = Duration::from_secs(1);

/// What is known of the buffer that an entry names.
enum Found {
    Usable(Arc<Outsider>, Way),
    /// It is none that this process can use.
    NotOurs,
    NotBefore(Instant),
}

/// What is known of an entry that names a buffer.
struct Known {
    /// Under which it does.
    generation: u64,
    found: Found,
    /// What of its memory was asked for by packets.
    asked: Asked,
}

/// The buffers of one neighbour, by the places of the entries that name them.
#[derive(Default)]
pub(super) struct Buffers(Mutex<HashMap<usize, Known>>);

/// What a request wants of an entry's buffer.
pub(super) struct Part {
    /// Address of its first byte there.
    pub(super) addr: u64,
    /// Which units it lies in, where the owner's device keeps translations.
    pub(super) units: Option<Range<u64>>,
}

impl Part {
    /// Whether the owner's device has its translations, where it keeps some; from now on it has.
    fn is_known(&self, asked: &mut Asked) -> bool {
        self.units.as_ref().is_none_or(|units| asked.all(units))
    }
}

/// A buffer that a request is to.
pub(super) struct Buffer {
    outsider: Arc<Outsider>,
    shown: ShownBuffer,
}

impl Buffer {
    /// Keeps it in its place, if it is where its entry says. Never allocates or waits.
    pub(super) fn enter(&self) -> Option<Inside<'_>> {
        self.outsider.enter(self.shown.moves()).then(|| Inside(&self.outsider))
    }
}

/// A buffer that stays where it is as long as this value lives.
pub(super) struct Inside<'a>(&'a Outsider);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Buffers {
    /// The buffer that an entry in `shm` of process `pid` names, for a request to a part of it, and
    /// the part as it is mapped here, if it is. Opens it the first time, so what is answered counts
    /// only if the entry still is what it was.
    pub(super) fn get(
        &self,
        shm: &Shm,
        pid: u32,
        (at, generation): Entry,
        shown: ShownBuffer,
        part: &Part,
    ) -> Option<(Buffer, Option<Seen>)> {
        let mut known = lock(&self.0);
        match known.get_mut(&at).filter(|known| known.generation == generation) {
            Some(Known { found: Found::Usable(outsider, way), asked, .. }) if outsider.is_own() => {
                return part.is_known(asked).then(|| {
                    let borrow = || outsider.reach(pid, part.addr, shown.moves());
                    let seen = way.seen(part.addr, OFTEN, || borrow().map_err(not_lent));
                    (Buffer { outsider: outsider.clone(), shown }, seen)
                });
            }
            Some(Known { found: Found::NotOurs, .. }) => return None,
            Some(Known { found: Found::NotBefore(then), .. }) if Instant::now() < *then => {
                return None;
            }
            _ => {}
        }
        known.try_reserve(1).ok()?;
        let mut asked = Asked::default();
        let goes = part.is_known(&mut asked);
        let found = match Outsider::new(pid, shown.control()) {
            Ok(outsider) => Found::Usable(outsider, Way::Calls(0)),
            Err(Refused::NotOurs) => Found::NotOurs,
            Err(Refused::NotNow) => Found::NotBefore(Instant::now() + PAUSE),
        };
        let buffer = match &found {
            Found::Usable(outsider, _) if goes => {
                Some((Buffer { outsider: outsider.clone(), shown }, None))
            }
            _ => None,
        };
        known.insert(at, Known { generation, found, asked });
        // Those whose keys are gone are kept no longer: each keeps pages of its buffer. Only now,
        // for the buffer of a new entry is often that of an old one.
        known.retain(|at, known| shm.word(*at).load(Relaxed) == known.generation);
        buffer
    }
}

fn not_lent(refused: Refused) -> NotLent {
    match refused {
        Refused::NotOurs => NotLent::Never,
        Refused::NotNow => NotLent::NotNow,
    }
}
