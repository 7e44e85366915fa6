//! Targets of the crate `shm`.

use crate::steps::Steps;
use shm::{Between, Passes, RING_BYTES, Record, RingWriter, Shm, Ticket};
use std::cell::RefCell;
use std::sync::atomic::Ordering::SeqCst;

/// Words of a ring before its records.
const WORDS_BEFORE: usize = 24;
/// Where a ring's reader says what it has taken.
const TAKEN: u8 = 8;

/// A ring whose reader writes what it likes, and a writer that goes by it. Steps: 0 to 3 and a
/// length write a record; 4 asks for room; 5 and a word of the ring's first or its place among the
/// records, with 8 bytes, is the reader's; 6 has the reader take a few words.
pub fn ring_writer(data: &[u8]) {
    let Ok(mut writer) = RingWriter::create(Between { from: 1, to: 2 }) else { return };
    let (mut steps, mut taken) = (Steps::new(data), 0u64);
    while let Some(step) = steps.next() {
        match step % 7 {
            0 => _ = writer.push(&vec![step; usize::from(steps.byte())], step.into()),
            1 => _ = writer.push(&vec![step; usize::from(steps.short())], step.into()),
            2 | 3 => {
                let len = usize::from(steps.short()) * if step % 7 == 2 { 1 } else { 16 };
                if let Ok(Some(at)) = writer.reserve(len) {
                    let end = at.checked_add(len).expect("a place");
                    assert!(at > WORDS_BEFORE * 8 && end <= writer.shm().bytes(), "{at} {len}");
                    writer.commit(Record { len, tag: step.into() });
                }
            }
            4 => _ = writer.has_room(steps.word() as usize),
            5 => {
                let at = usize::from(steps.short()) % (WORDS_BEFORE + RING_BYTES / 8);
                writer.shm().word(at * 8).store(steps.word(), SeqCst);
            }
            _ => {
                taken = taken.wrapping_add(steps.short().into());
                writer.shm().word(usize::from(TAKEN) * 8).store(taken, SeqCst);
            }
        }
    }
    let _ = writer.is_attached();
}

/// Honest steps, and a reader that says what cannot be.
pub fn ring_writer_seeds() -> Vec<Vec<u8>> {
    let long = [3, 0xff, 0x0f];
    let mut round = [&[0, 5, 1, 0x10, 2][..], &[2, 0, 8], &long, &[6, 0, 0x20]].concat();
    round.extend([4, 0, 1, 0, 0, 0, 0, 0, 0]);
    let lies = [0u64, 1, 1 << 63, u64::MAX, 0x1_0000, 0x1_0001];
    let lie = |value: &u64| [&[5, TAKEN, 0][..], &value.to_le_bytes(), &round].concat();
    let mut seeds: Vec<Vec<u8>> = lies.iter().map(lie).collect();
    seeds.push(round.repeat(20));
    seeds.push([&long[..]; 12].concat());
    seeds
}

/// Where a region's passes begin, words of it that they take, and a thing that somebody wants.
const PASSES_AT: usize = 64;
const PASS_WORDS: usize = Passes::BYTES / 8;
const THING: u32 = 5;
/// A process that there is none of: its number is more than Linux gives by default.
const NO_PROCESS: u64 = 0x3f_ffff << 31;
/// What a ticket says of its process, and that it is one.
const PROCESS: u64 = NO_PROCESS;
const BUSY: u64 = 1 << 63;
/// A pass that nobody gets any more.
const BARRED: u64 = u64::MAX;

thread_local! {
    static PLACE: RefCell<Option<(Shm, Passes)>> = const { RefCell::new(None) };
}

/// Passes whose words anybody writes, while visitors come and go and their owner waits. Steps: 0
/// and a number goes in, 1 leaves, 2 waits; 3 and the place of a word, with 8 bytes, is the hostile
/// visitor's. It names no process that lives: such a one is waited for.
pub fn passes(data: &[u8]) {
    PLACE.with_borrow_mut(|place| {
        let new = || {
            let shm = Shm::create("fuzz", PASSES_AT + Passes::BYTES + 64).expect("a memfd").0;
            (shm, Passes::new(PASSES_AT))
        };
        let (shm, passes) = place.get_or_insert_with(new);
        (0..shm.bytes() / 8).for_each(|at| shm.word(at * 8).store(0, SeqCst));
        visit(shm, passes, data);
        // Around the passes nothing was written.
        let beyond = (0..PASSES_AT).chain(PASSES_AT + Passes::BYTES..shm.bytes());
        assert!(beyond.step_by(8).all(|at| shm.word(at).load(SeqCst) == 0));
    });
}

fn visit(shm: &Shm, passes: &Passes, data: &[u8]) {
    let (mut steps, mut inside) = (Steps::new(data), Vec::new());
    while let Some(step) = steps.next() {
        match step % 4 {
            0 => {
                let second = u32::from(steps.byte());
                let ticket = Ticket::new(THING + second % 2, second, (NO_PROCESS >> 31) as u32);
                inside.extend(passes.enter(shm, ticket, || second % 3 != 0));
            }
            1 => drop(inside.pop()),
            2 => {
                assert!(passes.wait(shm, |ticket| ticket.first() == THING), "none of them lives");
                let first = |word: u64| word as u32 & 0x1_ffff;
                let used = shm.word(PASSES_AT + 8).load(SeqCst).min(PASS_WORDS as u64 / 8 - 1);
                for at in (1..=used as usize).map(|index| PASSES_AT + index * 64) {
                    let word = shm.word(at).load(SeqCst);
                    let left = word & BUSY == 0 || word == BARRED || first(word) != THING;
                    assert!(left, "{word:#x} is inside");
                }
            }
            _ => {
                let at = usize::from(steps.short()) % PASS_WORDS;
                let value = steps.word();
                let alive = value & BUSY != 0 && value != BARRED;
                let value = if alive { value & !PROCESS | NO_PROCESS } else { value };
                shm.word(PASSES_AT + at * 8).store(value, SeqCst);
            }
        }
    }
}

/// Visits, and tickets, marks and counts that nobody gave.
pub fn passes_seeds() -> Vec<Vec<u8>> {
    let visits = [0, 1, 0, 2, 2, 1, 2, 0, 5, 0, 8, 1, 1, 2];
    let lie = |(at, value): &(u16, u64)| {
        [&visits[..], &[3], &at.to_le_bytes(), &value.to_le_bytes(), &visits].concat()
    };
    let ticket = BUSY | NO_PROCESS | u64::from(THING);
    let lies = [(0, u64::MAX), (0, 1), (1, u64::MAX), (1, 0), (8, BARRED), (8, 1), (8, ticket)];
    let more = [(16, ticket), (16, ticket + 1), (PASS_WORDS as u16 - 8, ticket), (1, 1 << 63)];
    let mut seeds: Vec<Vec<u8>> = lies.iter().chain(&more).map(lie).collect();
    seeds.push([0, 1].repeat(140));
    seeds
}
