//! The buffers that a neighbour's memory is in, as this process keeps them in their places while it
//! copies.

use super::Entry;
use super::keys::ShownBuffer;
use dmabuf::{Outsider, Refused};
use engine_thread::lock;
use shm::Shm;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a buffer that cannot be used now is not asked for again: that costs as much as many
/// packets.
const PAUSE: Duration = Duration::from_secs(1);

/// What is known of the buffer that an entry names.
enum Found {
    Usable(Arc<Outsider>),
    /// It is none that this process can use.
    NotOurs,
    NotBefore(Instant),
}

/// By the place of a key's entry: the generation under which it named a buffer, and that.
type Known = HashMap<usize, (u64, Found)>;

/// The buffers of one neighbour, by the entries that name them.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Known>);

/// A buffer that stays where it is as long as this value lives.
pub(super) struct Inside<'a>(&'a Outsider);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Inside<'_> {
    /// Keeps a buffer in its place, if it is where its entry says. Never allocates or waits.
    pub(super) fn enter(outsider: &Outsider, buffer: ShownBuffer) -> Option<Inside<'_>> {
        outsider.enter(buffer.moves()).then(|| Inside(outsider))
    }
}

impl Buffers {
    /// The buffer that an entry in `shm` of process `pid` names. Opens it the first time, so what
    /// is answered counts only if the entry still is what it was.
    pub(super) fn get(
        &self,
        shm: &Shm,
        pid: u32,
        entry: Entry,
        buffer: ShownBuffer,
    ) -> Option<Arc<Outsider>> {
        let (at, generation) = entry;
        let mut known = lock(&self.0);
        match known.get(&at).filter(|(of, _)| *of == generation) {
            Some((_, Found::Usable(outsider))) if outsider.is_own() => {
                return Some(outsider.clone());
            }
            Some((_, Found::NotOurs)) => return None,
            Some((_, Found::NotBefore(then))) if Instant::now() < *then => return None,
            _ => {}
        }
        known.try_reserve(1).ok()?;
        let found = match Outsider::new(pid, buffer.control()) {
            Ok(outsider) => Found::Usable(outsider),
            Err(Refused::NotOurs) => Found::NotOurs,
            Err(Refused::NotNow) => Found::NotBefore(Instant::now() + PAUSE),
        };
        let outsider = match &found {
            Found::Usable(outsider) => Some(outsider.clone()),
            Found::NotOurs | Found::NotBefore(_) => None,
        };
        known.insert(at, (generation, found));
        // Those whose keys are gone are kept no longer: each keeps pages of its buffer. Only now,
        // for the buffer of a new entry is often that of an old one.
        known.retain(|at, (of, _)| shm.word(*at).load(Relaxed) == *of);
        outsider
    }
}
