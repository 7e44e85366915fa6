//! Death at an instant of one's choice, to prove that whoever is left outlives it: a process that a
//! test started ends, or ends another, where it comes by a point for so many times.
//!
//! Without the feature `sabotage` nothing is left of it in the program.

/// A point of what processes do to memory that they share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Point {
    /// The visitor has no pass yet.
    BeforePass = 1,
    /// It has one, and has not looked at the gates.
    InPass = 2,
    /// It copies: the end comes from another thread, some microseconds later.
    AmidCopy = 3,
    /// It has copied, and still has its pass.
    AfterCopy = 4,
    /// It has given the pass back, and told nobody.
    AfterPass = 5,
    /// A record is written, but for its first word.
    RecordWritten = 6,
    /// A record is read, and its place not given back.
    RecordRead = 7,
    /// A ring is announced, and not counted.
    Announcing = 8,
    /// A ring is marked as read, and nobody reads it yet.
    Attaching = 9,
}

impl Point {
    /// All of them, with their names.
    pub const ALL: &[(Point, &str)] = &[
        (Point::BeforePass, "before-pass"),
        (Point::InPass, "in-pass"),
        (Point::AmidCopy, "amid-copy"),
        (Point::AfterCopy, "after-copy"),
        (Point::AfterPass, "after-pass"),
        (Point::RecordWritten, "record-written"),
        (Point::RecordRead, "record-read"),
        (Point::Announcing, "announcing"),
        (Point::Attaching, "attaching"),
    ];
}

/// The process comes by a point.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub const fn reached(_: Point) {}

#[cfg(feature = "sabotage")]
mod switched {
    use super::Point;
    use crate::gone::is_gone;
    use rustix::process::{Pid, Signal, kill_process};
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    static POINT: AtomicU32 = AtomicU32::new(0);
    static LEFT: AtomicU32 = AtomicU32::new(0);
    static VICTIM: AtomicU32 = AtomicU32::new(0);
    static DELAY_US: AtomicU32 = AtomicU32::new(0);

    /// How much longer a later end amid a copy takes. Such a copy takes some dozens of them.
    const STEP_US: u32 = 3;

    /// Has process `victim` end when this one comes by `point` for the time `nth`, counted from 1.
    pub fn kill_at(point: Point, nth: u32, victim: u32) {
        VICTIM.store(victim, SeqCst);
        DELAY_US.store(nth.saturating_mul(STEP_US), SeqCst);
        LEFT.store(nth, SeqCst);
        POINT.store(point as u32, SeqCst);
    }

    /// The process comes by a point.
    pub fn reached(point: Point) {
        if POINT.load(SeqCst) != point as u32 || LEFT.fetch_sub(1, SeqCst) != 1 {
            return;
        }
        POINT.store(0, SeqCst);
        let victim = VICTIM.load(SeqCst);
        match point {
            Point::AmidCopy => drop(std::thread::spawn(move || {
                let (begun, delay) = (Instant::now(), DELAY_US.load(SeqCst));
                while begun.elapsed() < Duration::from_micros(delay.into()) {}
                kill(victim);
            })),
            _ => kill(victim),
        }
    }

    fn kill(victim: u32) {
        if let Some(pid) = Pid::from_raw(victim.cast_signed()) {
            let _ = kill_process(pid, Signal::KILL);
        }
        // Nothing more happens to this process, or before the other's end.
        while !is_gone(victim) {
            std::thread::yield_now();
        }
    }
}

#[cfg(feature = "sabotage")]
pub use switched::{kill_at, reached};
