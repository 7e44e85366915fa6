//! The buffers that a neighbour's memory is in, as this process keeps them in their places while it
//! copies.

use super::Entry;
use super::keys::ShownBuffer;
use dmabuf::Outsider;
use engine_thread::lock;
use shm::Shm;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// Entries up to which nobody looks for those that are over.
const FEW: usize = 32;

/// By the place of a key's entry: the generation under which it named the buffer, and the buffer;
/// `None` for one that this process cannot use.
type Known = HashMap<usize, (u64, Option<Arc<Outsider>>)>;

/// The buffers of one neighbour, by the entries that name them.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Known>);

/// A buffer that stays where it is as long as this value lives.
pub(super) struct Inside(Arc<Outsider>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Inside {
    /// Keeps a buffer in its place, if it is where its entry says.
    pub(super) fn enter(outsider: Arc<Outsider>, buffer: ShownBuffer) -> Option<Inside> {
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
        if known.len() >= FEW && known.len() == known.capacity() {
            known.retain(|at, (of, _)| shm.word(*at).load(Relaxed) == *of);
        }
        known.try_reserve(1).ok()?;
        let outsider = Outsider::new(pid, buffer.control());
        known.insert(at, (generation, outsider.clone()));
        outsider
    }
}
