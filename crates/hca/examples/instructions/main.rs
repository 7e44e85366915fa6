//! Runs small pieces of the data path for `cargo xtask counts`, which counts their instructions by
//! callgrind. It prints the name of each piece that it has counted, in order, once for each time.
//!
//! Two devices of this process are joined by UDP sockets, or by shared memory, and their progress
//! threads stand still: every packet moves in the one thread there is, so that no wake-up decides
//! what a call does.

#[path = "../../tests/ends/mod.rs"]
mod ends;
mod formats;
mod path;

use std::hint::black_box;

/// Runs a piece.
type Run = fn(&mut dyn FnMut());

/// Runs before the first that counts: stores grow, tables and branches of ours become what they
/// stay.
const UNCOUNTED_RUNS: usize = 32;
/// Runs that count. A queue that starts anew at the end of its ring, or a timer that comes due, is
/// part of few of them.
const COUNTED_RUNS: usize = 64;

fn main() {
    formats::count_all();
    path::count_all();
}

/// Runs a piece by `turn`, which prepares it, calls what it is given once with the piece itself,
/// and tidies up.
fn count(name: &str, mut turn: impl FnMut(Run)) {
    for _ in 0..UNCOUNTED_RUNS {
        turn(|piece| piece());
    }
    for _ in 0..COUNTED_RUNS {
        turn(counted);
        println!("{name}");
    }
}

/// What callgrind counts, by this function's name: all that happens in here.
#[inline(never)]
fn counted(piece: &mut dyn FnMut()) {
    piece();
    // Not the last call of this function, which a jump could replace.
    black_box(());
}
