//! The entry of an MKEY: what it says, to listings and to neighbours, and how it is written.

use super::{Directory, ENTRY, KEYS_AT, OPEN, closed_after, head};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use transport::keys::{Mkey, place_of};
use umem::Shown;

/// Where in a key's entry the words of [`open_words`] are, beyond that of the first word.
const OPEN_WORDS_AT: usize = 32;
/// Where in it the word of its rights is.
const RIGHTS_AT: usize = 16;

/// In the word of a key's rights: its device keeps translations of the memory.
pub(super) const TRANSLATED: u64 = 1 << 40;
/// In the same: the entry changes however the memory's mapping ends.
pub(super) const WATCHED: u64 = 1 << 41;

impl Directory {
    /// What the entry of an MKEY says, with the size of the pages by which its memory is
    /// translated, if it is by pages. With `open`, for a plain key, a neighbour may reach it
    /// without packets.
    fn words_of_key(key: u32, mkey: &Mkey, page_size: Option<u64>, open: bool) -> [u64; 7] {
        let page_bits = page_size.and_then(u64::checked_ilog2).unwrap_or(0);
        let shown = mkey.umem.shown().filter(|_| open);
        let translated = if shown.is_some_and(|shown| shown.translated) { TRANSLATED } else { 0 };
        let watched = if shown.is_some_and(|shown| shown.watched) { WATCHED } else { 0 };
        let [addr, route, buffer] = open_words(shown);
        [
            u64::from(key) | u64::from(mkey.pd.0) << 32,
            u64::from(mkey.access.bits()) | u64::from(page_bits) << 32 | translated | watched,
            mkey.iova,
            mkey.umem.len(),
            addr,
            route,
            buffer,
        ]
    }

    /// From now on listings look at the key's place.
    fn use_place(&self, key: u32) {
        let (used, place) = (self.shm.word(head::KEYS), place_of(key) as u64);
        if used.load(Relaxed) <= place {
            used.fetch_max(place + 1, Relaxed);
        }
    }

    /// Writes the entry of an MKEY. It is not valid yet; the generation for [`Directory::open`].
    pub(super) fn write_key(
        &self,
        key: u32,
        mkey: &Mkey,
        page_size: Option<u64>,
        open: bool,
    ) -> u64 {
        self.use_place(key);
        self.write_closed(key_at(key), &Directory::words_of_key(key, mkey, page_size, open))
    }

    /// Writes where the memory of a key is now. Otherwise as [`Directory::write_key`].
    pub(super) fn write_place(&self, key: u32, shown: Option<Shown<'_>>) -> u64 {
        let closed = self.shut(key_at(key));
        self.write_words(key_at(key) + OPEN_WORDS_AT, &open_words(shown));
        closed
    }

    /// Takes back that its entry changes however the memory's mapping ends. The entry is closed, or
    /// listings alone act by it.
    pub(super) fn unwatch_key(&self, key: u32) {
        self.shm.word(key_at(key) + RIGHTS_AT).fetch_and(!WATCHED, SeqCst);
    }

    /// Shows an MKEY to listings that no neighbour may reach: its entry has one writer, and nobody
    /// acts by it.
    pub(super) fn list_key(&self, key: u32, mkey: &Mkey, page_size: Option<u64>) {
        self.use_place(key);
        let closed = self.unlist_key(key);
        let words = Directory::words_of_key(key, mkey, page_size, false);
        self.write_words(key_at(key), &words);
        self.shm.word(key_at(key)).store(closed + 1, Release);
    }

    /// Takes it back; the generation of its entry then.
    pub(super) fn unlist_key(&self, key: u32) -> u64 {
        let generation = self.shm.word(key_at(key));
        let closed = closed_after(generation.load(Relaxed));
        generation.store(closed, Relaxed);
        closed
    }
}

/// Where memory is in its process; where its route counts, with [`OPEN`]; and the [`ShownBuffer`]
/// that it is in, if any. All 0 where the memory is not simple.
fn open_words(shown: Option<Shown<'_>>) -> [u64; 3] {
    let words = |shown: Shown<'_>| {
        let (read, written) = shown.route.published_at()?;
        let buffer = match shown.buffer {
            Some((control, moves)) => ShownBuffer::new(control, moves)?.0,
            None => 0,
        };
        Some([shown.addr, OPEN | read as u64 | (written as u64) << 31, buffer])
    };
    shown.and_then(words).unwrap_or_default()
}

/// The buffer that memory is in, as one word: the descriptor of its control block in the memory's
/// process, and the number of moves after which it is where the entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct ShownBuffer(u64);

impl ShownBuffer {
    const MOVES: u64 = (1 << 42) - 1;

    /// `None` where there is no room for the numbers.
    fn new(control: BorrowedFd<'_>, moves: u64) -> Option<ShownBuffer> {
        let fd = u64::from(control.as_raw_fd().cast_unsigned());
        (fd < 1 << 21 && moves <= Self::MOVES).then_some(ShownBuffer(OPEN | fd << 42 | moves))
    }

    /// What an entry's word says; `None` for memory in no buffer.
    pub(super) fn of_word(word: u64) -> Option<ShownBuffer> {
        (word & OPEN != 0).then_some(ShownBuffer(word))
    }

    pub(super) fn control(self) -> u32 {
        (self.0 >> 42) as u32 & 0x1f_ffff
    }

    pub(super) fn moves(self) -> u64 {
        self.0 & Self::MOVES
    }
}

pub(super) fn key_at(key: u32) -> usize {
    KEYS_AT + place_of(key) * ENTRY
}
