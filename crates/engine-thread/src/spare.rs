//! Memory kept back for when the system has none.
//!
//! Rust ends the program when a small allocation fails: text for a log line, a count around an
//! object, the node of a table. In somebody else's process that must not happen. So where malloc
//! refuses, the allocator of our libraries ([`Sparing`]) gives a block that has been part of the
//! library since it was loaded, until there is memory again. What is large (queues, buffers, tables
//! in one piece) is asked for in a way that may fail, and is never taken from here.
//!
//! The blocks must suffice for what a call does on its way to saying that there is no memory, and
//! to take objects down. So while any is in use and malloc still refuses, calls that make objects
//! refuse at once ([`may_make`]).
//!
//! There is no lock: a block is claimed by a bit, so a fork or a signal amid an allocation leaves
//! nothing locked.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{
    AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

/// Blocks of one size, as many as a [`Bits`] counts at most.
struct Class {
    block_bytes: usize,
    blocks: usize,
    /// Where they begin.
    at: usize,
}

/// From small to large. Each begins at a multiple of its blocks' size.
const CLASSES: [Class; 3] = [
    Class { block_bytes: 256, blocks: 256, at: 0 },
    Class { block_bytes: 2048, blocks: 64, at: 64 << 10 },
    Class { block_bytes: 32 << 10, blocks: 8, at: 192 << 10 },
];
const BYTES: usize = 448 << 10;
/// Finding out whether there is memory again must not find these.
const _: () = assert!(CLASSES[CLASSES.len() - 1].block_bytes < crate::ROOM_BYTES);

/// Which blocks of a class are in use.
type Bits = [AtomicU64; 4];

#[repr(C, align(4096))]
struct Blocks(UnsafeCell<[u8; BYTES]>);

// SAFETY: the bytes of a block are used by whoever holds its bit, and by nobody else.
unsafe impl Sync for Blocks {}

/// All blocks; of the pages they lie in the system gives those that are touched.
struct Spare {
    memory: Blocks,
    taken: [Bits; CLASSES.len()],
    in_use: AtomicUsize,
}

impl Spare {
    const fn new() -> Spare {
        Spare {
            memory: Blocks(UnsafeCell::new([0; BYTES])),
            taken: [const { [const { AtomicU64::new(0) }; 4] }; CLASSES.len()],
            in_use: AtomicUsize::new(0),
        }
    }

    fn start(&self) -> *mut u8 {
        self.memory.0.get().cast()
    }

    /// A block for `layout`, null when there is none.
    fn take(&self, layout: Layout) -> *mut u8 {
        for (class, bits) in CLASSES.iter().zip(&self.taken) {
            let fits = layout.size() <= class.block_bytes
                && layout.align() <= class.block_bytes.min(align_of::<Blocks>());
            if fits && let Some(index) = claim(bits, class.blocks) {
                self.in_use.fetch_add(class.block_bytes, Relaxed);
                // SAFETY: the classes lie within the memory.
                return unsafe { self.start().add(class.at + index * class.block_bytes) };
            }
        }
        ptr::null_mut()
    }

    /// The class and index of the block that begins at `block`, if it is one.
    fn place_of(&self, block: *mut u8) -> Option<(usize, usize)> {
        let at = (block as usize).checked_sub(self.start() as usize).filter(|&at| at < BYTES)?;
        let class = CLASSES.iter().rposition(|class| class.at <= at)?;
        Some((class, (at - CLASSES[class].at) / CLASSES[class].block_bytes))
    }

    fn give_back(&self, (class, index): (usize, usize)) {
        self.in_use.fetch_sub(CLASSES[class].block_bytes, Relaxed);
        self.taken[class][index / 64].fetch_and(!(1 << (index % 64)), Release);
    }
}

fn claim(bits: &Bits, blocks: usize) -> Option<usize> {
    for (index, word) in bits.iter().enumerate().take(blocks.div_ceil(64)) {
        let here = (blocks - index * 64).min(64);
        let mask = u64::MAX >> (64 - here);
        let mut taken = word.load(Relaxed);
        while !taken & mask != 0 {
            let bit = (!taken & mask).trailing_zeros() as usize;
            match word.compare_exchange_weak(taken, taken | 1 << bit, Acquire, Relaxed) {
                Ok(_) => return Some(index * 64 + bit),
                Err(now) => taken = now,
            }
        }
    }
    None
}

// SAFETY: blocks come from the system's allocator, or are the caller's alone while their bit is
// set; both go back to where they came from, which their address shows.
unsafe impl GlobalAlloc for Spare {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { System.alloc(layout) };
        if block.is_null() { self.take(layout) } else { block }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        let block = unsafe { System.alloc_zeroed(layout) };
        if !block.is_null() {
            return block;
        }
        let block = self.take(layout);
        if !block.is_null() {
            // SAFETY: a block of at least this size, which is ours.
            unsafe { ptr::write_bytes(block, 0, layout.size()) };
        }
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        match self.place_of(block) {
            Some(place) => self.give_back(place),
            // SAFETY: the caller's promise; it is not one of ours.
            None => unsafe { System.dealloc(block, layout) },
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let place = self.place_of(block);
        match place {
            Some((class, _)) if new_size <= CLASSES[class].block_bytes => return block,
            Some(_) => {}
            None => {
                // SAFETY: the caller's promise; it is not one of ours.
                let moved = unsafe { System.realloc(block, layout, new_size) };
                if !moved.is_null() {
                    return moved;
                }
            }
        }
        // SAFETY: the caller promises a size that is right with this alignment.
        let moved =
            unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
        if !moved.is_null() {
            // SAFETY: both are of at least so many bytes, and the new one is nobody else's.
            unsafe { ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size)) };
            // SAFETY: the caller gives the old one up.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

/// Those of this library: each has its own.
static SPARE: Spare = Spare::new();

/// The allocator of a library that lives in other people's processes: the system's, and behind it
/// what the library keeps back.
#[derive(Debug)]
pub struct Sparing;

// SAFETY: all of it is [`Spare`]'s.
unsafe impl GlobalAlloc for Sparing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { SPARE.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { SPARE.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { SPARE.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { SPARE.realloc(block, layout, new_size) }
    }
}

/// Whether calls that make something may do so: not while what was kept back is in use and the
/// system still has no memory.
pub fn may_make() -> bool {
    let in_use = SPARE.in_use.load(Relaxed);
    in_use == 0 || (in_use < BYTES / 2 && crate::has_memory())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    #[test]
    fn the_classes_fill_the_memory_and_are_aligned() {
        let mut end = 0;
        for class in &CLASSES {
            assert_eq!(class.at, end);
            assert!(class.at.is_multiple_of(class.block_bytes) && class.blocks <= 256);
            end += class.block_bytes * class.blocks;
        }
        assert_eq!(end, BYTES);
    }

    #[test]
    fn every_block_is_given_once_and_comes_back() {
        let spare = Box::new(Spare::new());
        let sizes = [1, 100, 256, 257, 2048, 9000, 32 << 10];
        let mut blocks = Vec::new();
        for round in 0.. {
            let layout = layout(sizes[round % sizes.len()], 64);
            let block = spare.take(layout);
            if block.is_null() {
                break;
            }
            // SAFETY: the block is ours; a block given twice would be overwritten.
            unsafe { ptr::write_bytes(block, round as u8, layout.size()) };
            blocks.push((block, layout, round as u8));
        }
        assert!(blocks.len() > 8);
        for (block, layout, value) in blocks {
            // SAFETY: written above.
            let bytes = unsafe { std::slice::from_raw_parts(block, layout.size()) };
            assert!(bytes.iter().all(|byte| *byte == value) && (block as usize).is_multiple_of(64));
            spare.give_back(spare.place_of(block).unwrap());
        }
        assert_eq!(spare.in_use.load(Relaxed), 0);
        assert!(spare.taken.iter().flatten().all(|word| word.load(Relaxed) == 0));
        assert!(spare.take(layout(32 << 10 | 1, 1)).is_null());
        assert!(spare.take(layout(1, 8192)).is_null());
        assert!(spare.place_of(ptr::null_mut()).is_none());
    }

    #[test]
    fn a_block_grows_out_of_the_spare_memory() {
        let spare = Box::new(Spare::new());
        let small = layout(200, 8);
        let block = spare.take(small);
        // SAFETY: blocks of this allocator with their layouts.
        unsafe {
            ptr::write_bytes(block, 7, 200);
            assert_eq!(spare.realloc(block, small, 256), block);
            let moved = spare.realloc(block, layout(256, 8), 5000);
            assert!(spare.place_of(moved).is_none(), "the system has memory");
            assert_eq!(std::slice::from_raw_parts(moved, 200), [7; 200]);
            assert_eq!(spare.in_use.load(Relaxed), 0);
            spare.dealloc(moved, layout(5000, 8));
        }
    }

    #[test]
    fn threads_share_the_blocks() {
        let spare = Box::new(Spare::new());
        std::thread::scope(|scope| {
            for mark in 0..4u8 {
                let spare = &spare;
                scope.spawn(move || {
                    for _ in 0..2000 {
                        let block = spare.take(layout(32 << 10, 8));
                        if block.is_null() {
                            continue;
                        }
                        // SAFETY: the block is this thread's.
                        unsafe {
                            block.write(mark);
                            std::thread::yield_now();
                            assert_eq!(block.read(), mark);
                        }
                        spare.give_back(spare.place_of(block).unwrap());
                    }
                });
            }
        });
        assert_eq!(spare.in_use.load(Relaxed), 0);
    }
}
