//! Commands about completion queues (`cqc`).

use super::part::{Whole, request};
use super::queue::{Placement, PlacementFields, UmemFields};
use crate::layout::bits::Field;
use crate::layout::context::Context;
use crate::layout::head::{OBJECT, OP_MOD, UID};
use std::ops::Range;

/// `cqc` in the commands that carry one.
const CONTEXT: Range<usize> = 0x10..0x50;
const fn context(field: Field) -> Field {
    field.at(CONTEXT.start * 8)
}

// Fields of `cqc` that change with the entries' place.
pub(crate) const CQE_SZ: Field = Field::new(0x8, 3);
pub(crate) const PAGE_OFFSET: Field = Field::new(0x54, 6);
pub(crate) const LOG_CQ_SIZE: Field = Field::new(0x63, 5);
pub(crate) const LOG_PAGE_SIZE: Field = Field::new(0xc3, 5);

const PLACEMENT: PlacementFields = PlacementFields {
    entries: UmemFields::behind_context(0x280),
    record: UmemFields {
        valid: context(Field::new(0x6, 1)),
        number: context(Field::new(0x20, 32)),
        offset: context(Field::new(0x1c0, 64)),
    },
    log_page_size: context(LOG_PAGE_SIZE),
    page_offset: context(PAGE_OFFSET),
    pages: 0x110,
};

request! {
    /// The entries of a completion queue, as `create_cq_in` and `modify_cq_in` describe them.
    Entries {
        cqe_sz: u8 = context(CQE_SZ),
        log_cq_size: u32 = context(LOG_CQ_SIZE),
        placement: Placement = PLACEMENT,
    }

    CreateCq {
        uid: u16 = UID,
        entries: Entries = Whole,
        /// "Overrun ignore".
        oi: bool = context(Field::new(0xe, 1)),
        uar_page: u32 = context(Field::new(0x68, 24)),
        c_eqn: u32 = context(Field::new(0xa0, 32)),
        context: Context = CONTEXT,
    }

    ModifyCq {
        op_mod: u16 = OP_MOD,
        cqn: u32 = OBJECT,
        modify_field_select: u32 = Field::new(0x60, 32),
        entries: Entries = Whole,
        context: Option<Context> = CONTEXT,
    }
}
