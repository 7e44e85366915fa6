//! Doorbell pages (PRM "UAR Page Format"): a program that has one mapped rings by it. A page
//! belongs to the user whose command allocated it, and it rings only for queues whose context names
//! it, so that a program with a page of its own rings for no queue of another.
//!
//! Queues hold the page that they name. A page that was given back matches none any more, also when
//! its number is given out again.

use crate::keys::memic;
use std::ops::Range;
use std::sync::Mutex;

/// Bytes of a page.
pub(crate) const LEN: u64 = 4096;
/// Pages begin behind the registers, and end where the device's memory is.
pub(crate) const PAGES: Range<u32> = 16..(memic::WINDOWS.start / LEN) as u32;

/// A page that was allocated.
#[derive(Default)]
pub(crate) struct Uar {
    /// The first word of a doorbell that comes in two writes, which a machine of 32 bits makes.
    pub(crate) half: Mutex<u32>,
}
