//! Transitions of queue pairs: what `RST2INIT_QP` and its neighbours carry (PRM "QP State
//! Transitions", `qpc`, `ads`), as the HCA's attributes.

use crate::layout::bits::Field;
use crate::object::shared::{Shared, is_on_ethernet};
use crate::request::qp::Transition::{
    InitToInit, InitToRtr, RstToInit, RtrToRts, RtsToRts, SqdToRts,
};
use crate::request::qp::{AddressPath, ModifyQp, PATH_BIT, Transition};
use crate::work::address::on_network;
use hca::{Access, AhAttr, AttrMask, QpAttr, QpState, QpType};

// Optional attributes (`enum mlx5_qp_optpar`).
const OPTIONAL_RIGHTS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
const OPTIONAL_QKEY: u32 = 1 << 5;
const OPTIONAL_RNR_TIMER: u32 = 1 << 6;
/// At INIT: a bad block signature stops the send queue.
const OPTIONAL_STOPS: u32 = 1 << 11;
const OPTIONAL_COUNTER_SET: u32 = 1 << 25;
// Those that have no place there.
const OPTIONAL_UDP_PORT: u64 = 1 << 2;
const OPTIONAL_COPIES: u64 = 1 << 3;

/// The set of counters that a queue pair counts into, in `qpc`.
pub(crate) const COUNTER_SET: Field = Field::new(0x60, 8);

/// Fields of `qpc` that a query gives back as they were given (their places in `qpc` itself): the
/// address path,
const PATH: [Field; 6] = [
    Field::new(PATH_BIT, 64),
    Field::new(PATH_BIT + 0x40, 64),
    Field::new(PATH_BIT + 0x80, 64),
    Field::new(PATH_BIT + 0xc0, 64),
    Field::new(PATH_BIT + 0x100, 64),
    Field::new(PATH_BIT + 0x140, 32),
];
/// what the peer may do,
const RIGHTS: [Field; 3] = [Field::new(0x490, 1), Field::new(0x491, 1), Field::new(0x492, 1)];
/// what a connected queue pair learns for receiving: MTU, longest message, peer, READs it answers,
/// RNR timer,
const RECEIVING: [Field; 5] = [
    Field::new(0x40, 3),
    Field::new(0x43, 5),
    Field::new(0xa8, 24),
    Field::new(0x488, 3),
    Field::new(0x4a3, 5),
];
/// and for sending: ACK timeout, READs it asks for, retries.
const SENDING: [Field; 4] = [
    Field::new(PATH_BIT + 0x40, 5),
    Field::new(0x388, 3),
    Field::new(0x38d, 3),
    Field::new(0x390, 3),
];
/// The UDP port that packets leave from.
pub(crate) const UDP_PORT: Field = Field::new(PATH_BIT + 0x110, 16);
const RNR_TIMER: [Field; 1] = [Field::new(0x4a3, 5)];

/// Which of them a transition brings.
pub(crate) fn remembered(
    transition: Transition,
    service: QpType,
    request: &ModifyQp,
) -> Vec<Field> {
    let optional = request.opt_param_mask;
    let mut fields = match transition {
        RstToInit => [&PATH[..], &RIGHTS].concat(),
        InitToRtr if service == QpType::Ud => RECEIVING[..2].to_vec(),
        InitToRtr => [&PATH[..], &RECEIVING].concat(),
        RtrToRts => SENDING.to_vec(),
        _ => Vec::new(),
    };
    if optional & OPTIONAL_RIGHTS != 0 {
        fields.extend(RIGHTS);
    }
    if optional & OPTIONAL_RNR_TIMER != 0 {
        fields.extend(RNR_TIMER);
    }
    fields
}

/// The set of counters that a transition names, if it does.
pub(crate) fn counter_set(transition: Transition, request: &ModifyQp) -> Option<u32> {
    let named = match transition {
        RstToInit => true,
        RtsToRts => request.opt_param_mask & OPTIONAL_COUNTER_SET != 0,
        _ => false,
    };
    named.then_some(request.counter_set_id)
}

/// Whether a transition has bad block signatures stop the send queue.
pub(crate) fn stops_at_bad_signatures(transition: Transition, request: &ModifyQp) -> bool {
    transition == InitToInit && request.opt_param_mask & OPTIONAL_STOPS != 0 && request.drain_sigerr
}

/// The UDP port that packets leave from now on, if a transition brings one for a queue pair that
/// can send.
pub(crate) fn udp_source(transition: Transition, request: &ModifyQp) -> Option<u16> {
    let optional = request.opt_param_mask_95_32;
    let named = transition == RtsToRts && optional & OPTIONAL_UDP_PORT != 0;
    named.then_some(request.path.udp_sport)
}

/// Whether a transition has the queue pair copy memory (`qpc_ext`).
pub(crate) fn copies_memory(transition: Transition, request: &ModifyQp) -> bool {
    transition == InitToInit
        && request.qpc_ext
        && request.opt_param_mask_95_32 & OPTIONAL_COPIES != 0
        && request.mmo
}

/// The driver's state of a queue pair (`enum mlx5_qp_state`).
pub(crate) fn state_number(state: QpState) -> u64 {
    match state {
        QpState::Reset => 0,
        QpState::Init => 1,
        QpState::Rtr => 2,
        QpState::Rts => 3,
        QpState::Sqe => 4,
        QpState::Sqd => 5,
        QpState::Err => 6,
    }
}

/// What a transition brings, for a queue pair of `service` whose attributes are `now`.
pub(crate) fn attributes(
    shared: &Shared,
    transition: Transition,
    service: QpType,
    now: QpAttr,
    request: &ModifyQp,
) -> (QpAttr, AttrMask) {
    type M = AttrMask;
    let mut attr = now;
    let mut mask = M::STATE;
    let optional = request.opt_param_mask;
    attr.qp_state = transition.to();
    let ud = service == QpType::Ud;
    let rights = match transition {
        RstToInit => !ud,
        _ => !ud && optional & OPTIONAL_RIGHTS != 0,
    };
    if rights {
        mask |= M::ACCESS_FLAGS;
        attr.access = access(request);
    }
    if ud && (transition == RstToInit || optional & OPTIONAL_QKEY != 0) {
        mask |= M::QKEY;
        attr.qkey = request.q_key;
    }
    let answers = matches!(service, QpType::Rc | QpType::XrcRecv);
    let sends = matches!(service, QpType::Rc | QpType::XrcSend);
    match transition {
        RstToInit => {
            mask |= M::PKEY_INDEX | M::PORT;
            attr.pkey_index = 0;
            attr.port_num = 1;
        }
        InitToRtr if !ud => {
            mask |= M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
            attr.ah = address(shared, &request.path);
            attr.path_mtu = request.mtu;
            attr.dest_qp_num = request.remote_qpn;
            attr.rq_psn = request.next_rcv_psn;
            if answers {
                mask |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
                attr.max_dest_rd_atomic = 1 << request.log_rra_max;
                attr.min_rnr_timer = request.min_rnr_nak;
            }
        }
        RtrToRts => {
            mask |= M::SQ_PSN;
            attr.sq_psn = request.next_send_psn;
            if service.is_reliable() {
                mask |= M::TIMEOUT;
                attr.timeout = request.path.ack_timeout;
            }
            if sends {
                mask |= M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
                attr.retry_cnt = request.retry_count;
                attr.rnr_retry = request.rnr_retry;
                attr.max_rd_atomic = 1 << request.log_sra_max;
            }
        }
        _ => {}
    }
    let later = matches!(transition, RtrToRts | RtsToRts | SqdToRts);
    if later && answers && optional & OPTIONAL_RNR_TIMER != 0 {
        mask |= M::MIN_RNR_TIMER;
        attr.min_rnr_timer = request.min_rnr_nak;
    }
    (attr, mask)
}

fn access(request: &ModifyQp) -> Access {
    let mut access = Access::LOCAL_WRITE;
    access.set(Access::REMOTE_READ, request.rre);
    access.set(Access::REMOTE_WRITE, request.rwe);
    access.set(Access::REMOTE_ATOMIC, request.rae);
    access
}

fn address(shared: &Shared, path: &AddressPath) -> AhAttr {
    let ah = AhAttr {
        dlid: path.rlid,
        sgid_index: path.src_addr_index,
        sl: if is_on_ethernet(&shared.hca) { path.eth_prio } else { path.sl },
        hop_limit: path.hop_limit,
        traffic_class: path.tclass,
        flow_label: if path.grh { path.flow_label } else { 0 },
        udp_src: path.udp_sport,
        dgid: path.rgid_rip,
        dmac: path.rmac,
        port_num: 1,
        ..AhAttr::default()
    };
    on_network(shared, ah)
}
