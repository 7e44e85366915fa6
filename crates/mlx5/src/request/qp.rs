//! Commands about queue pairs (`qpc`, `ads`), and the groups and sets of counters that they join.

use super::part::{Whole, request};
use super::queue::{Placement, PlacementFields, UmemFields};
use crate::layout::bits::Field;
use crate::layout::context::Context;
use crate::layout::head::OBJECT;
use hca::QpState;
use std::ops::Range;

/// `qpc` in the commands that carry one.
const CONTEXT: Range<usize> = 0x18..0x100;
const fn context(bit: usize, width: usize) -> Field {
    Field::new(bit, width).at(CONTEXT.start * 8)
}

/// The primary address path `ads` within `qpc`.
pub(crate) const PATH_BIT: usize = 0xc0;
const fn path(bit: usize, width: usize) -> Field {
    context(PATH_BIT + bit, width)
}

const fn path_byte(bit: usize) -> usize {
    CONTEXT.start + (PATH_BIT + bit) / 8
}

const PLACEMENT: PlacementFields = PlacementFields {
    entries: UmemFields::behind_context(0x800),
    record: UmemFields {
        valid: context(0x683, 1),
        number: context(0x720, 32),
        offset: context(0x500, 64),
    },
    log_page_size: context(0xa3, 5),
    page_offset: context(0x494, 6),
    pages: 0x110,
};

request! {
    CreateQp {
        /// "Service type".
        st: u8 = context(0x8, 8),
        block_lb_mc: bool = context(0x21, 1),
        pd: u32 = context(0x28, 24),
        log_rq_size: u32 = context(0x49, 4),
        log_rq_stride: u32 = context(0x4d, 3),
        no_sq: bool = context(0x50, 1),
        log_sq_size: u32 = context(0x51, 4),
        uar_page: u32 = context(0x68, 24),
        user_index: u32 = context(0x88, 24),
        /// "Fast registration enable": it may write lists of pages into memory keys.
        fre: bool = context(0x394, 1),
        cqn_snd: u32 = context(0x3e8, 24),
        xrcd: u32 = context(0x4c8, 24),
        cqn_rcv: u32 = context(0x4e8, 24),
        rq_type: u8 = context(0x565, 3),
        srqn_rmpn_xrqn: u32 = context(0x568, 24),
        placement: Placement = PLACEMENT,
        context: Context = CONTEXT,
    }

    /// What `RST2INIT_QP` and its neighbours carry.
    ModifyQp {
        qpn: u32 = OBJECT,
        /// Which optional attributes it brings (`enum mlx5_qp_optpar`).
        opt_param_mask: u32 = Field::new(0x80, 32),
        /// The optional attributes that have no place there.
        opt_param_mask_95_32: u64 = Field::new(0x840, 64),
        /// `qpc_ext` counts.
        qpc_ext: bool = Field::new(0x40, 1),
        /// In `qpc_ext`: it copies memory.
        mmo: bool = Field::new(0x882, 1),
        /// A bad block signature stops the send queue.
        drain_sigerr: bool = context(0x25, 1),
        mtu: u32 = context(0x40, 3),
        counter_set_id: u32 = context(0x60, 8),
        remote_qpn: u32 = context(0xa8, 24),
        path: AddressPath = Whole,
        log_sra_max: u8 = context(0x388, 3),
        retry_count: u8 = context(0x38d, 3),
        rnr_retry: u8 = context(0x390, 3),
        next_send_psn: u32 = context(0x3c8, 24),
        log_rra_max: u8 = context(0x488, 3),
        rre: bool = context(0x490, 1),
        rwe: bool = context(0x491, 1),
        rae: bool = context(0x492, 1),
        min_rnr_nak: u8 = context(0x4a3, 5),
        next_rcv_psn: u32 = context(0x4a8, 24),
        q_key: u32 = context(0x540, 32),
        /// `qpc` as far as the command reaches, for what queries give back.
        context: Context = CONTEXT.start..,
    }

    /// The way to the peer (`ads`).
    AddressPath {
        grh: bool = path(0x28, 1),
        rlid: u16 = path(0x30, 16),
        ack_timeout: u8 = path(0x40, 5),
        src_addr_index: u8 = path(0x48, 8),
        hop_limit: u8 = path(0x58, 8),
        tclass: u8 = path(0x64, 8),
        flow_label: u32 = path(0x6c, 20),
        rgid_rip: [u8; 16] = path_byte(0x80),
        udp_sport: u16 = path(0x110, 16),
        eth_prio: u8 = path(0x121, 3),
        sl: u8 = path(0x124, 4),
        rmac: [u8; 6] = path_byte(0x130),
    }

    /// `attach_to_mcg_in` and `detach_from_mcg_in`.
    Membership {
        qpn: u32 = OBJECT,
        multicast_gid: Option<[u8; 16]> = 0x10..,
    }

    DeallocQCounter {
        counter_set_id: u32 = Field::new(0x58, 8),
    }

    QueryQCounter {
        clear: bool = Field::new(0xc0, 1),
        counter_set_id: u32 = Field::new(0xf8, 8),
    }
}

/// A command that changes the state of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transition {
    RstToInit,
    InitToInit,
    InitToRtr,
    RtrToRts,
    RtsToRts,
    SqdToRts,
    ToErr,
    ToRst,
}

impl Transition {
    /// The state that a queue pair must be in before, unless any will do.
    pub(crate) fn from(self) -> Option<QpState> {
        match self {
            Transition::RstToInit => Some(QpState::Reset),
            Transition::InitToInit | Transition::InitToRtr => Some(QpState::Init),
            Transition::RtrToRts => Some(QpState::Rtr),
            Transition::RtsToRts => Some(QpState::Rts),
            Transition::SqdToRts => Some(QpState::Sqd),
            Transition::ToErr | Transition::ToRst => None,
        }
    }

    /// The state that it is in afterwards.
    pub(crate) fn to(self) -> QpState {
        match self {
            Transition::RstToInit | Transition::InitToInit => QpState::Init,
            Transition::InitToRtr => QpState::Rtr,
            Transition::RtrToRts | Transition::RtsToRts | Transition::SqdToRts => QpState::Rts,
            Transition::ToErr => QpState::Err,
            Transition::ToRst => QpState::Reset,
        }
    }
}
