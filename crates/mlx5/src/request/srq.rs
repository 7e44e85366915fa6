//! Commands about shared receive queues: those of XRC (`xrc_srqc`), receive memory pools (`rmpc`)
//! and queues that match tags (`xrqc`).

use super::part::request;
use super::queue::{Placement, PlacementFields, UmemFields, Wq, WqAt};
use crate::layout::bits::Field;
use crate::layout::context::Context;
use crate::layout::head::{OBJECT, OP_MOD};

/// `xrc_srqc` and `xrqc`.
const fn context(bit: usize, width: usize) -> Field {
    Field::new(bit, width).at(0x80)
}

const XRC_PLACEMENT: PlacementFields = PlacementFields {
    entries: UmemFields::behind_context(0x280),
    record: UmemFields {
        valid: context(0x47, 1),
        number: context(0x60, 32),
        offset: context(0x140, 64),
    },
    log_page_size: context(0x82, 6),
    page_offset: context(0x40, 6),
    pages: 0x110,
};

/// `rmpc` begins at 0x100, its work queue 0x180 later.
const POOL_WQ: WqAt = WqAt { bit: 0x280, pages: 0x110 };

/// `xrqc` begins at 0x80, its work queue 0x400 later; the pages follow that.
const TAGS_WQ: WqAt = WqAt { bit: 0x480, pages: 0x150 };

/// Requests below which an event is raised.
const ARMED_LWM: Field = Field::new(0x70, 16);

request! {
    CreateXrcSrq {
        log_xrc_srq_size: u32 = context(0x4, 4),
        log_rq_stride: u32 = context(0x25, 3),
        xrcd: u32 = context(0x28, 24),
        cqn: u32 = context(0x48, 24),
        user_index: u32 = context(0x88, 24),
        pd: u32 = context(0xc8, 24),
        placement: Placement = XRC_PLACEMENT,
        context: Context = 0x10..0x50,
    }

    CreateRmp {
        wq: Wq = POOL_WQ,
        /// `rmpc` and its work queue.
        context: Context = 0x20..POOL_WQ.pages,
    }

    CreateXrq {
        topology: u8 = context(0x14, 4),
        user_index: u32 = context(0x28, 24),
        cqn: u32 = context(0x48, 24),
        log_matching_list_sz: u32 = context(0x100, 4),
        wq: Wq = TAGS_WQ,
        context: Context = 0x10..TAGS_WQ.pages,
    }

    ArmXrcSrq {
        xrc_srqn: u32 = OBJECT,
        lwm: u16 = ARMED_LWM,
    }

    ArmRq {
        op_mod: u16 = OP_MOD,
        srq_number: u32 = OBJECT,
        lwm: u16 = ARMED_LWM,
    }

    ModifyRmp {
        rmpn: u32 = OBJECT,
        /// `lwm` is meant (in `bitmask`).
        changes_lwm: bool = Field::new(0x80 + 0x3f, 1),
        lwm: u16 = Field::new(POOL_WQ.bit + 0x30, 16),
    }
}
