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

/// By the place of a key's entry: the generation under which it named the buffer, and the buffer;
/// `None` for one that this process cannot use.
type Known = HashMap<usize, (u64, Option<Arc<Outsider>>)>;

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
        if let Some((of, outsider)) = known.get(&at)
            && *of == generation
            && outsider.as_ref().is_none_or(|outsider| outsider.is_own())
        {
            return outsider.clone();
        }
        // Whose keys are gone are kept no longer: each keeps pages of its buffer.
        known.retain(|at, (of, _)| shm.word(*at).load(Relaxed) == *of);
        known.try_reserve(1).ok()?;
        let outsider = match Outsider::new(pid, buffer.control()) {
            Ok(outsider) => Some(outsider),
            Err(Refused::NotOurs) => None,
            Err(Refused::NotNow) => return None,
        };
        known.insert(at, (generation, outsider.clone()));
        outsider
    }
}
