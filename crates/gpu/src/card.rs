//! What the buffers of one GPU share: its memory, and those that nobody has a handle of any more.

use crate::Error;
use crate::buffer::Body;
use crate::vram::Vram;
use dmabuf::ControlBlocks;
use engine_thread::lock;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

/// What a software GPU is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// Name for display.
    pub name: String,
    /// Bytes of memory.
    pub vram_bytes: u64,
    /// Bytes of it that the BAR shows to peers, from the start.
    pub bar_bytes: u64,
    /// Its place on the platform.
    pub address: pcie::Address,
}

pub(crate) struct Card {
    pub(crate) config: Config,
    pub(crate) controls: Arc<dyn ControlBlocks>,
    vram: Mutex<Vram>,
    /// Exported buffers without handle.
    orphans: Mutex<Vec<Arc<Body>>>,
    /// All buffers, oldest first.
    bodies: Mutex<Vec<Weak<Body>>>,
}

impl Card {
    pub(crate) fn new(config: Config, controls: Arc<dyn ControlBlocks>) -> Arc<Card> {
        let vram = Mutex::new(Vram::new(config.vram_bytes));
        let (orphans, bodies) = (Mutex::default(), Mutex::default());
        Arc::new(Card { config, controls, vram, orphans, bodies })
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.collect();
        lock(&self.vram).free_bytes()
    }

    /// A range of `size` bytes of the memory. Where there is none, buffers that nobody pins go to
    /// host memory, oldest first, until there is.
    pub(crate) fn reserve(self: &Arc<Self>, size: u64) -> Result<Reservation, Error> {
        self.collect();
        let mut range = self.take(size);
        if range.is_none() && size <= self.config.vram_bytes {
            let evict = |body: Arc<Body>| body.evict().then(|| self.take(size)).flatten();
            range = self.bodies().into_iter().find_map(evict);
        }
        let free = lock(&self.vram).free_bytes();
        let range = range.ok_or(Error::OutOfMemory { wanted: size, free })?;
        Ok(Reservation { card: self.clone(), range })
    }

    fn take(&self, size: u64) -> Option<Range<u64>> {
        let mut vram = lock(&self.vram);
        vram.take(size).map(|start| start..start + size)
    }

    /// Counts a new buffer among those that may have to make room.
    pub(crate) fn adopt(&self, body: &Arc<Body>) {
        let mut bodies = lock(&self.bodies);
        bodies.retain(|body| body.strong_count() > 0);
        bodies.push(Arc::downgrade(body));
    }

    fn bodies(&self) -> Vec<Arc<Body>> {
        let bodies = lock(&self.bodies);
        bodies.iter().filter_map(Weak::upgrade).collect()
    }

    /// The last handle of a buffer is gone. It lives on while somebody holds a descriptor of it.
    pub(crate) fn abandon(&self, body: Arc<Body>) {
        lock(&self.orphans).push(body);
        self.collect();
    }

    /// Frees the abandoned buffers that nobody holds a descriptor of any more.
    fn collect(&self) {
        let mut freed = Vec::new();
        lock(&self.orphans).retain(|body| {
            body.is_open_elsewhere() || {
                freed.push(body.clone());
                false
            }
        });
        // Outside the lock: freeing gives memory back.
        drop(freed);
    }
}

/// A range of the card's memory, given back when dropped.
pub(crate) struct Reservation {
    card: Arc<Card>,
    pub(crate) range: Range<u64>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut vram = lock(&self.card.vram);
        vram.give(self.range.start, self.range.end - self.range.start);
    }
}

pub(crate) fn system(what: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System(what, errno)
}
