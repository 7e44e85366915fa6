//! What the buffers of one GPU share: its memory, and those that nobody has a handle of any more.

use crate::Error;
use crate::buffer::Body;
use crate::vram::Vram;
use dmabuf::ControlBlocks;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

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
}

impl Card {
    pub(crate) fn new(config: Config, controls: Arc<dyn ControlBlocks>) -> Arc<Card> {
        let vram = Mutex::new(Vram::new(config.vram_bytes));
        Arc::new(Card { config, controls, vram, orphans: Mutex::default() })
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.collect();
        self.vram.lock().unwrap_or_else(PoisonError::into_inner).free_bytes()
    }

    /// A range of `size` bytes of the memory.
    pub(crate) fn reserve(self: &Arc<Self>, size: u64) -> Result<Reservation, Error> {
        self.collect();
        let mut vram = self.vram.lock().unwrap_or_else(PoisonError::into_inner);
        let free = vram.free_bytes();
        let start = vram.take(size).ok_or(Error::OutOfMemory { wanted: size, free })?;
        Ok(Reservation { card: self.clone(), range: start..start + size })
    }

    /// The last handle of a buffer is gone. It lives on while somebody holds a descriptor of it.
    pub(crate) fn abandon(&self, body: Arc<Body>) {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner).push(body);
        self.collect();
    }

    /// Frees the abandoned buffers that nobody holds a descriptor of any more.
    fn collect(&self) {
        let mut freed = Vec::new();
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner).retain(|body| {
            body.is_open_elsewhere() || {
                freed.push(body.clone());
                false
            }
        });
        // outside the lock: freeing gives memory back
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
        let mut vram = self.card.vram.lock().unwrap_or_else(PoisonError::into_inner);
        vram.give(self.range.start, self.range.end - self.range.start);
    }
}

pub(crate) fn system(what: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::System(what, errno)
}
