//! Pages of processes in the GPU's memory (device-private pages, as nouveau's `nouveau_dmem.c` has
//! them).
//!
//! Memory for them is taken from the GPU in blocks, which stay theirs. Peers reach a frame where it
//! is, if its place in the GPU's memory is behind the BAR. A frame that is given back is
//! overwritten with [`dmabuf::POISON`].

use crate::SoftwareGpu;
use crate::card::{Card, Reservation};
use engine_thread::lock;
use mm::{DeviceMemory, Mapping, Sink, page_size};
use std::sync::{Arc, Mutex};

/// Pages of a block: the most for which the GPU has room.
const BLOCK_PAGES: [u64; 4] = [512, 64, 8, 1];

struct Block {
    place: Reservation,
    /// Kept for as long as this process lives, whose pages may be there.
    memory: &'static Mapping,
}

/// The frames of one GPU.
pub(crate) struct PrivatePages {
    owner: pcie::Address,
    bar_bytes: u64,
    card: Arc<Card>,
    blocks: Mutex<Vec<Block>>,
    /// Has room for the frames of all blocks: whoever gives one back may not allocate, nor wait for
    /// who does.
    free: Mutex<Vec<Sink<'static>>>,
}

impl SoftwareGpu {
    /// The part of the GPU's memory that holds pages of this process.
    pub fn private_pages(&self) -> Arc<dyn DeviceMemory> {
        let card = &self.card;
        let new = || {
            Arc::new(PrivatePages {
                owner: card.config.address,
                bar_bytes: card.config.bar_bytes,
                card: card.clone(),
                blocks: Mutex::default(),
                free: Mutex::default(),
            })
        };
        self.private.get_or_init(new).clone()
    }
}

impl PrivatePages {
    /// Takes another block from the GPU; `false` when that has no page left.
    fn grow(&self, blocks: &mut Vec<Block>) -> bool {
        let reserve = |pages| self.card.reserve(pages * page_size()).ok();
        let place = BLOCK_PAGES.into_iter().find_map(reserve);
        let Some(place) = place else { return false };
        let len = place.range.end - place.range.start;
        let Ok(memory) = Mapping::anonymous(len) else { return false };
        let memory: &'static Mapping = Box::leak(Box::new(memory));
        let frames = (0..len / page_size()).rev();
        let frames = frames.filter_map(|n| memory.sink().part(n * page_size(), page_size()).ok());
        let total: u64 = blocks.iter().map(|block| block.memory.len()).sum::<u64>() + len;
        let mut free = Vec::with_capacity((total / page_size()) as usize);
        free.extend(frames);
        {
            let mut old = lock(&self.free);
            free.extend_from_slice(&old);
            std::mem::swap(&mut *old, &mut free);
        }
        blocks.push(Block { place, memory });
        true
    }
}

impl DeviceMemory for PrivatePages {
    fn owner(&self) -> pcie::Address {
        self.owner
    }

    fn take(&self, most: usize, taken: &mut dyn FnMut(Sink<'static>)) {
        let mut blocks = lock(&self.blocks);
        let mut left = most;
        loop {
            {
                let mut free = lock(&self.free);
                while left > 0
                    && let Some(frame) = free.pop()
                {
                    taken(frame);
                    left -= 1;
                }
            }
            if left == 0 || !self.grow(&mut blocks) {
                return;
            }
        }
    }

    fn give(&self, frame: Sink<'static>) {
        // The frames are mapped as long as this process lives.
        let _ = frame.fill(dmabuf::POISON);
        lock(&self.free).push(frame);
    }

    fn dma_address(&self, frame: u64) -> Option<u64> {
        let blocks = lock(&self.blocks);
        let block = blocks.iter().find(|block| block.memory.range().contains(&frame))?;
        let place = block.place.range.start + (frame - block.memory.addr());
        (place + page_size() <= self.bar_bytes).then_some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use dmabuf::LocalControls;

    fn gpu(vram_pages: u64, bar_pages: u64) -> SoftwareGpu {
        let page = page_size();
        let config = Config {
            name: "gpu".into(),
            vram_bytes: vram_pages * page,
            bar_bytes: bar_pages * page,
            address: "0000:03:00.0".parse().unwrap(),
        };
        SoftwareGpu::new(config, Arc::new(LocalControls::default()))
    }

    #[test]
    fn frames_take_the_gpus_memory() {
        let gpu = gpu(100, 70);
        let pages = gpu.private_pages();
        let take = |most| {
            let mut frames = Vec::new();
            pages.take(most, &mut |frame| frames.push(frame));
            frames
        };
        let frames = take(120);
        assert_eq!(frames.len(), 100);
        assert_eq!(gpu.free_bytes(), 0);
        assert!(gpu.alloc(1).is_err());
        let shown = frames.iter().map(|frame| frame.addr());
        let shown = shown.filter(|&at| pages.dma_address(at) == Some(at)).count();
        assert_eq!(shown, 70, "the BAR shows no more");
        assert_eq!(take(1), []);
        let again = frames[7];
        again.fill(1).unwrap();
        pages.give(again);
        let mut byte = [0];
        again.source().read(&mut byte).unwrap();
        assert_eq!(byte, [dmabuf::POISON]);
        assert_eq!(take(1), [again]);
        assert_eq!(pages.owner(), gpu.config().address);
        assert_eq!(pages.dma_address(1), None);
    }
}
