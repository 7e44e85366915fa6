//! Doorbell pages (PRM "UAR Page Format"): who has one mapped rings by it. A page is whose command allocated it, and it rings
//! only for queues whose context names it, so that a program with a page of its own rings for no queue of another.
//!
//! Queues hold the page that they name. A page that was given back matches none any more, also when its number is given out
//! again.

use crate::bits::{Field, be32};
use crate::command::{Commands, done, number};
use crate::cq::Cq;
use crate::function::Shared;
use crate::memic;
use crate::opcode::{Answer, Status};
use crate::qp;
use crate::report::Act;
use crate::send;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of a page.
const LEN: u64 = 4096;
/// Pages begin behind the registers, and end where the device's memory is.
pub(crate) const PAGES: Range<u32> = 16..(memic::WINDOWS.start / LEN) as u32;

const CQ_ARM: u64 = 0x20;
const EQ_ARM: u64 = 0x40;
const EQ_UPDATE: u64 = 0x48;
/// From here on send doorbells, one every 256 bytes, with room for a whole request behind each.
const SENDS: u64 = 0x800;
const SEND_LEN: u64 = 0x100;

/// Where the contexts of a queue pair, of a completion and an event queue and of an Ethernet's work queue name it, counted from
/// the context's start.
pub(crate) const IN_CONTEXT: Field = Field::new(0x68, 24);

/// A page that was allocated.
#[derive(Default)]
pub(crate) struct Uar {
    /// The first word of a doorbell that comes in two writes, which a machine of 32 bits makes.
    half: Mutex<u32>,
}

/// Whether BAR 0 has a page at `offset`.
pub(crate) fn is_at(offset: u64) -> bool {
    offset >= u64::from(PAGES.start) * LEN
}

/// `ALLOC_UAR`.
pub(crate) fn alloc(commands: &mut Commands, shared: &Shared) -> Answer {
    let page = commands.uars.take()?;
    shared.objects.uars.insert(page, Arc::default());
    number(page)
}

/// `DEALLOC_UAR`. Queues that name the page cannot be rung for from now on.
pub(crate) fn dealloc(commands: &mut Commands, shared: &Shared, page: u32) -> Answer {
    shared.objects.uars.remove(page)?;
    commands.uars.give_back(page)?;
    done()
}

/// The page that a context names whose structure begins `bits` into the command.
pub(crate) fn named(shared: &Shared, input: &[u8], bits: usize) -> Result<Arc<Uar>, Status> {
    shared.objects.uars.get(IN_CONTEXT.at(bits).get32(input))
}

/// A write to the page at `offset` of BAR 0.
pub(crate) fn write(shared: &Shared, offset: u64, data: &[u8]) {
    let page = (offset / LEN) as u32;
    let Ok(uar) = shared.objects.uars.get(page) else {
        return refuse(shared, page, format_args!("a page that nobody allocated"));
    };
    match (offset % LEN, data.len()) {
        (CQ_ARM, 8) => arm_cq(shared, page, &uar, data),
        (CQ_ARM, 4) => *uar.half.lock().unwrap_or_else(PoisonError::into_inner) = be32(data, 0),
        (at, 4) if at == CQ_ARM + 4 => {
            let first = *uar.half.lock().unwrap_or_else(PoisonError::into_inner);
            arm_cq(shared, page, &uar, &[&first.to_be_bytes(), data].concat());
        }
        (EQ_ARM, 4) => update_eq(shared, page, &uar, be32(data, 0), true),
        (EQ_UPDATE, 4) => update_eq(shared, page, &uar, be32(data, 0), false),
        (at, len) if at >= SENDS => match (at % SEND_LEN, len) {
            (0, 8..) => ring(shared, page, &uar, qp::doorbell(data)),
            (4, 4) => ring(shared, page, &uar, be32(data, 0) >> 8),
            // The request itself follows, which is in memory too.
            _ => {}
        },
        _ => {}
    }
}

fn ring(shared: &Shared, page: u32, uar: &Arc<Uar>, number: u32) {
    if !send::ring(shared, uar, number) {
        refuse(shared, page, format_args!("queue pair {number:#x}"));
    }
}

fn arm_cq(shared: &Shared, page: u32, uar: &Arc<Uar>, data: &[u8]) {
    let (number, word) = Cq::doorbell(data);
    match shared.objects.cqs.get(number) {
        Ok(pair) if pair.front.is_rung_by(uar) => pair.front.arm(word),
        _ => refuse(shared, page, format_args!("completion queue {number:#x}")),
    }
}

fn update_eq(shared: &Shared, page: u32, uar: &Arc<Uar>, word: u32, arm: bool) {
    if !shared.eqs.doorbell(uar, word, arm) {
        refuse(shared, page, format_args!("event queue {:#x}", word >> 24));
    }
}

fn refuse(shared: &Shared, page: u32, queue: fmt::Arguments<'_>) {
    shared.reports.tell(Act::Doorbell, format_args!("{queue}, by page {page:#x}"));
}
