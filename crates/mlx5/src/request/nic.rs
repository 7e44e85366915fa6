//! Commands about the queues, transport interfaces and indirection tables of an Ethernet.

use super::part::{Whole, request};
use super::queue::{Wq, WqAt};
use crate::layout::bits::Field;
use crate::layout::context::Context;
use crate::layout::head::OBJECT;
use hca::HASH_KEY_LEN;
use std::ops::Range;

/// Where every context here begins.
const CONTEXT_BIT: usize = 0x100;
const fn context(bit: usize, width: usize) -> Field {
    Field::new(bit, width).at(CONTEXT_BIT)
}

/// `rqc` or `sqc`.
const QUEUE: Range<usize> = 0x20..0x20 + 0xf8;
const WQ: WqAt = WqAt { bit: CONTEXT_BIT + 0x180, pages: 0x880 / 8 };
const TISC: Range<usize> = 0x20..0x20 + 0xa0;
const TRANSPORT_DOMAIN: Field = context(0x128, 24);

/// Which fields of a context a command means.
const MODIFY_BITMASK: Field = Field::new(0x80, 64);

request! {
    /// `create_rq_in`, and what `create_sq_in` has in common with it.
    CreateRq {
        user_index: u32 = context(0x28, 24),
        cqn: u32 = context(0x48, 24),
        wq: Wq = WQ,
        context: Context = QUEUE,
    }

    CreateSq {
        queue: CreateRq = Whole,
        tis_lst_sz: u16 = context(0x100, 16),
        tis_num_0: u32 = context(0x168, 24),
    }

    /// `modify_rq_in` and `modify_sq_in`.
    ModifyQueue {
        number: u32 = OBJECT,
        /// The state that the driver believes the queue to be in (`rq_state`, `sq_state`).
        from_state: u8 = Field::new(0x40, 4),
        modify_bitmask: u64 = MODIFY_BITMASK,
        state: u8 = context(0x8, 4),
        context: Context = QUEUE,
    }

    CreateTis {
        transport_domain: u32 = TRANSPORT_DOMAIN,
        context: Option<Context> = TISC,
    }

    ModifyTis {
        tisn: u32 = OBJECT,
        new: CreateTis = Whole,
    }

    /// `create_tir_in`, which is `tirc`.
    CreateTir {
        disp_type: u8 = context(0x20, 4),
        lro_enable_mask: u8 = context(0x94, 4),
        inline_rqn: u32 = context(0xe8, 24),
        rx_hash_symmetric: bool = context(0x100, 1),
        tunneled_offload_en: bool = context(0x102, 1),
        indirect_table: u32 = context(0x108, 24),
        rx_hash_fn: u8 = context(0x120, 4),
        /// Which frames of the same transport domain arrive: drivers take it to allow them.
        self_lb_block: u8 = context(0x126, 2),
        transport_domain: u32 = TRANSPORT_DOMAIN,
        rx_hash_toeplitz_key: Option<[u8; HASH_KEY_LEN]> = 0x48..,
        l3_prot_type: bool = context(0x280, 1),
        l4_prot_type: bool = context(0x281, 1),
        selected_fields: u32 = context(0x282, 30),
    }

    ModifyTir {
        tirn: u32 = OBJECT,
        bitmask: u64 = MODIFY_BITMASK,
        new: CreateTir = Whole,
    }

    /// `create_rqt_in`, which is `rqtc`.
    CreateRqt {
        rqt_actual_size: u16 = context(0xd0, 16),
        rq_num: Vec<u32> = (CONTEXT_BIT + 0x780) / 8..,
    }

    ModifyRqt {
        rqtn: u32 = OBJECT,
        /// The list is meant (in `bitmask`).
        rqn_list: bool = Field::new(0x80 + 0x3f, 1),
        new: CreateRqt = Whole,
    }
}
