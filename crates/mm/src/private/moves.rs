//! The two ways of a page: to a device and home.

use super::{CHUNK, DEAD, FRAME, MOVING, PrivateMemory, addr_of, frame, home_page, runs};
use crate::page_size;
use engine_thread::lock;
use std::ops::Range;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering::*};

impl PrivateMemory {
    /// Moves what can be of `chunk` into `frames`; those that hold a page then are 0. Nobody else
    /// moves anything, no device reaches the chunk and no interposed call changes it meanwhile.
    pub(super) fn send(&self, chunk: &Range<u64>, tag: u64, frames: &mut [u64]) -> u64 {
        let page = page_size();
        let mut chosen = self.choose(chunk, frames.len());
        for run in runs(chunk.start, chosen) {
            if self.uffd.write_protect(&run, true).is_err() {
                chosen &= !self.bits(chunk, &run);
                self.stay(&run);
            }
        }
        // from here on no store changes a chosen page: it would wait for us
        let mut used = 0;
        for run in runs(chunk.start, chosen) {
            for at in run.step_by(page as usize) {
                if frame(frames[used]).copy_from(home_page(at)).is_err() {
                    chosen &= !self.bits(chunk, &(at..at + page));
                    self.stay(&(at..at + page));
                    continue;
                }
                let _guard = lock(&self.lock);
                let word = self.entries.word(at / page);
                if let Some(word) = word {
                    word.fetch_or(frames[used] | tag, SeqCst);
                }
                used += 1;
            }
        }
        let mut moved = 0;
        for run in runs(chunk.start, chosen) {
            let discarded = discard(&run);
            for at in run.clone().step_by(page as usize) {
                moved += u64::from(self.arrive(at, discarded, frames));
            }
            if !discarded {
                let _ = self.uffd.write_protect(&run, false);
            }
        }
        self.to_device.fetch_add(moved, Relaxed);
        // whoever stored meanwhile tries again, and has the page brought home
        self.uffd.wake(chunk);
        moved
    }

    /// Marks up to `most` pages that are at home and not held there. Answers them as bits.
    fn choose(&self, chunk: &Range<u64>, most: usize) -> u64 {
        let page = page_size();
        let mut bits = 0u64;
        for at in chunk.clone().step_by(page as usize) {
            if bits.count_ones() as usize >= most {
                break;
            }
            let _guard = lock(&self.lock);
            let Some(word) = self.entries.word(at / page) else { continue };
            if word.load(Acquire) == 0 && !self.space.is_held(at..at + page) {
                word.store(MOVING, SeqCst);
                bits |= self.bits(chunk, &(at..at + page));
            }
        }
        bits
    }

    fn bits(&self, chunk: &Range<u64>, run: &Range<u64>) -> u64 {
        let number = |at: u64| (at - chunk.start) / page_size();
        (number(run.start)..number(run.end)).fold(0, |bits, number| bits | 1 << number)
    }

    /// Pages that were chosen stay at home.
    fn stay(&self, run: &Range<u64>) {
        {
            let _guard = lock(&self.lock);
            let page = page_size();
            self.entries.each(&(run.start / page..run.end / page), |_, word| {
                word.store(0, SeqCst);
            });
        }
        let _ = self.uffd.write_protect(run, false);
    }

    /// Settles one page after its copy: away if it was dropped here, else it stays. A frame that is
    /// not used goes back to `frames`.
    fn arrive(&self, at: u64, discarded: bool, frames: &mut [u64]) -> bool {
        let _guard = lock(&self.lock);
        let Some(word) = self.entries.word(at / page_size()) else { return false };
        let entry = word.load(Acquire);
        if discarded && entry & DEAD == 0 {
            word.store(entry & !MOVING, SeqCst);
            self.away.fetch_add(1, SeqCst);
            let taken = frames.iter_mut().find(|frame| **frame == entry & FRAME);
            taken.into_iter().for_each(|frame| *frame = 0);
            return true;
        }
        word.store(0, SeqCst);
        false
    }

    /// Brings home what is away of a chunk of page numbers, whoever's turn it is.
    pub(super) fn home_chunk(&self, _turn: &MutexGuard<'_, ()>, numbers: &Range<u64>) -> u64 {
        debug_assert!(numbers.end - numbers.start <= CHUNK);
        let range = addr_of(numbers.start)..addr_of(numbers.end);
        let Some(change) = self.space.begin_move(range.clone()) else { return 0 };
        let mut came = 0;
        self.entries.each(numbers, |number, word| {
            came += u64::from(self.restore(addr_of(number), word));
        });
        self.to_host.fetch_add(came, Relaxed);
        self.space.end_move(range, change);
        came
    }

    /// Brings one page home; `false` if it is not away, or its mapping is gone.
    fn restore(&self, at: u64, word: &AtomicU64) -> bool {
        loop {
            let guard = lock(&self.lock);
            let entry = word.load(Acquire);
            if entry & (MOVING | DEAD) != 0 || entry & FRAME == 0 {
                return false;
            }
            let outcome = self.uffd.copy(at, entry & FRAME, page_size(), false);
            if outcome.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EAGAIN)) {
                // a mapping is being changed: the reader must hear of it, and may need the lock
                drop(guard);
                std::thread::yield_now();
                continue;
            }
            word.store(0, SeqCst);
            self.away.fetch_sub(1, SeqCst);
            if let Some(device) = self.device(entry) {
                device.give(frame(entry));
            }
            self.uffd.wake(&(at..at + page_size()));
            return outcome.is_ok();
        }
    }

    /// Gives back the places of pages that are gone, once no device is inside.
    pub(super) fn sweep(&self, range: &Range<u64>) {
        let turn = lock(&self.turn);
        if let Some(change) = self.space.begin_move(range.clone()) {
            let _guard = lock(&self.lock);
            let page = page_size();
            self.entries.each(&(range.start / page..range.end.div_ceil(page)), |_, word| {
                let entry = word.load(Acquire);
                if entry & DEAD == 0 || entry & MOVING != 0 {
                    return;
                }
                word.store(0, SeqCst);
                if let Some(device) = self.device(entry) {
                    device.give(frame(entry));
                }
            });
            self.space.end_move(range.clone(), change);
        }
        drop(turn);
    }
}

/// Drops the pages of a range, whose bytes are elsewhere.
fn discard(range: &Range<u64>) -> bool {
    let (addr, len) = (range.start as usize, (range.end - range.start) as usize);
    // SAFETY: the program asked for these pages to be moved; their content was copied and is served
    // from there.
    unsafe { libc::syscall(libc::SYS_madvise, addr, len, libc::MADV_DONTNEED) == 0 }
}
