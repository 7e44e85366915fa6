//! Writes to doorbell pages (PRM "UAR Page Format"): each rings for the queue that it names, if
//! that names the page.

use crate::layout::bits::be32;
use crate::machine::report::Act;
use crate::nic::Nic;
use crate::object::cq::Cq;
use crate::object::qp;
use crate::object::shared::Shared;
use crate::object::uar::{LEN, PAGES, Uar};
use crate::work::send;
use engine_thread::lock;
use std::fmt;
use std::sync::Arc;

const CQ_ARM: u64 = 0x20;
const EQ_ARM: u64 = 0x40;
const EQ_UPDATE: u64 = 0x48;
/// From here on send doorbells, one every 256 bytes, with room for a whole request behind each.
const SENDS: u64 = 0x800;
const SEND_LEN: u64 = 0x100;

/// Whether BAR 0 has a page at `offset`.
pub(crate) fn is_at(offset: u64) -> bool {
    offset >= u64::from(PAGES.start) * LEN
}

/// A write to the page at `offset` of BAR 0.
pub(crate) fn write(shared: &Shared, nic: &Nic, offset: u64, data: &[u8]) {
    let page = (offset / LEN) as u32;
    let Ok(uar) = shared.objects.uars.get(page) else {
        return refuse(shared, page, format_args!("a page that nobody allocated"));
    };
    match (offset % LEN, data.len()) {
        (CQ_ARM, 8) => arm_cq(shared, page, &uar, data),
        (CQ_ARM, 4) => *lock(&uar.half) = be32(data, 0),
        (at, 4) if at == CQ_ARM + 4 => {
            let first = *lock(&uar.half);
            arm_cq(shared, page, &uar, &[&first.to_be_bytes(), data].concat());
        }
        (EQ_ARM, 4) => update_eq(shared, page, &uar, be32(data, 0), true),
        (EQ_UPDATE, 4) => update_eq(shared, page, &uar, be32(data, 0), false),
        (at, len) if at >= SENDS => match (at % SEND_LEN, len) {
            (0, 8..) => ring(shared, nic, page, &uar, qp::doorbell(data)),
            (4, 4) => ring(shared, nic, page, &uar, be32(data, 0) >> 8),
            // The request itself follows, which is in memory too.
            _ => {}
        },
        _ => {}
    }
}

fn ring(shared: &Shared, nic: &Nic, page: u32, uar: &Arc<Uar>, number: u32) {
    let rung = match shared.objects.qps.get(number) {
        Ok(pair) if pair.queues.are_rung_by(uar) => {
            send::read(shared, &pair);
            true
        }
        Ok(_) => false,
        Err(_) => nic.ring(shared, uar, number),
    };
    if !rung {
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
