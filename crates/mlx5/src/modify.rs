//! Transitions of queue pairs: what `RST2INIT_QP` and its neighbours carry (PRM "QP State Transitions", `qpc`, `ads`), as the
//! HCA's attributes.

use crate::bits::Field;
use crate::function::Shared;
use crate::opcode::{INIT2INIT_QP, INIT2RTR_QP, RST2INIT_QP, RTR2RTS_QP, RTS2RTS_QP, SQD_RTS_QP};
use crate::qp::{self, CONTEXT_BIT};
use hca::subnet;
use hca::{Access, AhAttr, AttrMask, QpAttr, QpState, QpType};

/// Which optional attributes a transition brings (`enum mlx5_qp_optpar`).
const OPTIONAL: Field = Field::new(0x80, 32);
const OPTIONAL_RIGHTS: u64 = 1 << 1 | 1 << 2 | 1 << 3;
const OPTIONAL_QKEY: u64 = 1 << 5;
const OPTIONAL_RNR_TIMER: u64 = 1 << 6;
/// At INIT.
const OPTIONAL_STOPS: u64 = 1 << 11;
const OPTIONAL_COUNTER_SET: u64 = 1 << 25;
/// Those that have no place there.
const MORE_OPTIONAL: Field = Field::new(0x840, 64);
const OPTIONAL_UDP_PORT: u64 = 1 << 2;

const fn context(bit: usize, width: usize) -> Field {
    Field::new(bit, width).at(CONTEXT_BIT)
}

/// The primary address path `ads` within `qpc`.
const PATH_BIT: usize = 0xc0;
const fn path(bit: usize, width: usize) -> Field {
    context(PATH_BIT + bit, width)
}

/// A bad block signature stops the send queue.
const STOPS_AT_BAD_SIGNATURES: Field = context(0x25, 1);
const MTU: Field = context(0x40, 3);
const REMOTE_QPN: Field = context(0xa8, 24);
const PATH_GRH: Field = path(0x28, 1);
const PATH_RLID: Field = path(0x30, 16);
const PATH_TIMEOUT: Field = path(0x40, 5);
const PATH_HOP_LIMIT: Field = path(0x58, 8);
const PATH_TRAFFIC_CLASS: Field = path(0x64, 8);
const PATH_FLOW_LABEL: Field = path(0x6c, 20);
const PATH_SOURCE: Field = path(0x48, 8);
/// First byte of the destination's GID, and of its hardware address.
const PATH_GID: Field = path(0x80, 8);
const PATH_MAC: Field = path(0x130, 8);
const PATH_UDP_PORT: Field = path(0x110, 16);
const PATH_PRIORITY: Field = path(0x121, 3);
const PATH_SL: Field = path(0x124, 4);
const LOG_SRA: Field = context(0x388, 3);
const RETRY_COUNT: Field = context(0x38d, 3);
const RNR_RETRY: Field = context(0x390, 3);
const NEXT_SEND_PSN: Field = context(0x3c8, 24);
const LOG_RRA: Field = context(0x488, 3);
const REMOTE_READ: Field = context(0x490, 1);
const REMOTE_WRITE: Field = context(0x491, 1);
const REMOTE_ATOMIC: Field = context(0x492, 1);
const MIN_RNR_NAK: Field = context(0x4a3, 5);
const NEXT_RECEIVE_PSN: Field = context(0x4a8, 24);
const QKEY: Field = context(0x540, 32);

/// The set of counters that it counts into; its place in `qpc` itself.
pub(crate) const COUNTER_SET: Field = qp::COUNTER_SET.at_start(CONTEXT_BIT);

/// Fields of `qpc` that a query gives back as they were given (their places in `qpc` itself): the address path,
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
/// what a connected queue pair learns for receiving: MTU, longest message, peer, READs it answers, RNR timer,
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
pub(crate) fn remembered(opcode: u16, service: QpType, input: &[u8]) -> Vec<Field> {
    let optional = OPTIONAL.get(input);
    let mut fields = match opcode {
        RST2INIT_QP => [&PATH[..], &RIGHTS].concat(),
        INIT2RTR_QP if service == QpType::Ud => RECEIVING[..2].to_vec(),
        INIT2RTR_QP => [&PATH[..], &RECEIVING].concat(),
        RTR2RTS_QP => SENDING.to_vec(),
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
pub(crate) fn counter_set(opcode: u16, input: &[u8]) -> Option<u32> {
    let named = match opcode {
        RST2INIT_QP => true,
        RTS2RTS_QP => OPTIONAL.get(input) & OPTIONAL_COUNTER_SET != 0,
        _ => false,
    };
    named.then(|| qp::COUNTER_SET.get32(input))
}

/// Whether a transition has bad block signatures stop the send queue.
pub(crate) fn stops_at_bad_signatures(opcode: u16, input: &[u8]) -> bool {
    opcode == INIT2INIT_QP
        && OPTIONAL.get(input) & OPTIONAL_STOPS != 0
        && STOPS_AT_BAD_SIGNATURES.is_set(input)
}

/// The UDP port that packets leave from now on, if a transition brings one for a queue pair that can send.
pub(crate) fn udp_source(opcode: u16, input: &[u8]) -> Option<u16> {
    let named = opcode == RTS2RTS_QP && MORE_OPTIONAL.get(input) & OPTIONAL_UDP_PORT != 0;
    named.then(|| PATH_UDP_PORT.get(input) as u16)
}

/// Whether a transition has the queue pair copy memory (`qpc_ext`).
pub(crate) fn copies_memory(opcode: u16, input: &[u8]) -> bool {
    const EXTENDED: Field = Field::new(0x40, 1);
    const OPTIONAL_95_32: Field = Field::new(0x840, 64);
    const COPIES: Field = Field::new(0x882, 1);
    opcode == INIT2INIT_QP
        && EXTENDED.is_set(input)
        && OPTIONAL_95_32.get(input) & 1 << 3 != 0
        && COPIES.is_set(input)
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

/// The state before and after a transition.
pub(crate) fn states(opcode: u16) -> Option<(QpState, QpState)> {
    Some(match opcode {
        RST2INIT_QP => (QpState::Reset, QpState::Init),
        INIT2INIT_QP => (QpState::Init, QpState::Init),
        INIT2RTR_QP => (QpState::Init, QpState::Rtr),
        RTR2RTS_QP => (QpState::Rtr, QpState::Rts),
        RTS2RTS_QP => (QpState::Rts, QpState::Rts),
        SQD_RTS_QP => (QpState::Sqd, QpState::Rts),
        _ => return None,
    })
}

/// What a transition brings, for a queue pair of `service` whose attributes are `now`.
pub(crate) fn attributes(
    shared: &Shared,
    opcode: u16,
    service: QpType,
    now: QpAttr,
    input: &[u8],
) -> (QpAttr, AttrMask) {
    type M = AttrMask;
    let mut attr = now;
    let mut mask = M::STATE;
    let optional = OPTIONAL.get(input);
    if let Some((_, to)) = states(opcode) {
        attr.qp_state = to;
    }
    let ud = service == QpType::Ud;
    let rights = match opcode {
        RST2INIT_QP => !ud,
        _ => !ud && optional & OPTIONAL_RIGHTS != 0,
    };
    if rights {
        mask |= M::ACCESS_FLAGS;
        attr.access = access(input);
    }
    if ud && (opcode == RST2INIT_QP || optional & OPTIONAL_QKEY != 0) {
        mask |= M::QKEY;
        attr.qkey = QKEY.get32(input);
    }
    let answers = matches!(service, QpType::Rc | QpType::XrcRecv);
    let sends = matches!(service, QpType::Rc | QpType::XrcSend);
    match opcode {
        RST2INIT_QP => {
            mask |= M::PKEY_INDEX | M::PORT;
            attr.pkey_index = 0;
            attr.port_num = 1;
        }
        INIT2RTR_QP if !ud => {
            mask |= M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
            attr.ah = address(shared, input);
            attr.path_mtu = MTU.get32(input);
            attr.dest_qp_num = REMOTE_QPN.get32(input);
            attr.rq_psn = NEXT_RECEIVE_PSN.get32(input);
            if answers {
                mask |= M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
                attr.max_dest_rd_atomic = 1 << LOG_RRA.get(input);
                attr.min_rnr_timer = MIN_RNR_NAK.get(input) as u8;
            }
        }
        RTR2RTS_QP => {
            mask |= M::SQ_PSN;
            attr.sq_psn = NEXT_SEND_PSN.get32(input);
            if service.is_reliable() {
                mask |= M::TIMEOUT;
                attr.timeout = PATH_TIMEOUT.get(input) as u8;
            }
            if sends {
                mask |= M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
                attr.retry_cnt = RETRY_COUNT.get(input) as u8;
                attr.rnr_retry = RNR_RETRY.get(input) as u8;
                attr.max_rd_atomic = 1 << LOG_SRA.get(input);
            }
        }
        _ => {}
    }
    let later = matches!(opcode, RTR2RTS_QP | RTS2RTS_QP | SQD_RTS_QP);
    if later && answers && optional & OPTIONAL_RNR_TIMER != 0 {
        mask |= M::MIN_RNR_TIMER;
        attr.min_rnr_timer = MIN_RNR_NAK.get(input) as u8;
    }
    (attr, mask)
}

fn on_ethernet(shared: &Shared) -> bool {
    shared.hca.mac().is_some()
}

fn access(input: &[u8]) -> Access {
    let mut access = Access::LOCAL_WRITE;
    access.set(Access::REMOTE_READ, REMOTE_READ.is_set(input));
    access.set(Access::REMOTE_WRITE, REMOTE_WRITE.is_set(input));
    access.set(Access::REMOTE_ATOMIC, REMOTE_ATOMIC.is_set(input));
    access
}

fn address(shared: &Shared, input: &[u8]) -> AhAttr {
    let ah = AhAttr {
        dlid: PATH_RLID.get(input) as u16,
        sgid_index: PATH_SOURCE.get(input) as u8,
        sl: if on_ethernet(shared) { PATH_PRIORITY } else { PATH_SL }.get(input) as u8,
        hop_limit: PATH_HOP_LIMIT.get(input) as u8,
        traffic_class: PATH_TRAFFIC_CLASS.get(input) as u8,
        flow_label: if PATH_GRH.is_set(input) { PATH_FLOW_LABEL.get32(input) } else { 0 },
        udp_src: PATH_UDP_PORT.get(input) as u16,
        dgid: bytes_of(PATH_GID, input),
        dmac: bytes_of(PATH_MAC, input),
        port_num: 1,
        ..AhAttr::default()
    };
    on_network(shared, ah)
}

/// The bytes of an address, whose first is in `first`.
fn bytes_of<const N: usize>(first: Field, input: &[u8]) -> [u8; N] {
    std::array::from_fn(|byte| first.at(byte * 8).get(input) as u8)
}

/// The address that a send request names. Its priority on an Ethernet stands a bit above where a service level does.
pub(crate) fn of_request(shared: &Shared, ah: AhAttr) -> AhAttr {
    let sl = if on_ethernet(shared) { ah.sl >> 1 } else { ah.sl };
    on_network(shared, AhAttr { sl, ..ah })
}

/// An address as the HCA's network has it. On an InfiniBand subnet the LID alone says where it is.
fn on_network(shared: &Shared, ah: AhAttr) -> AhAttr {
    if on_ethernet(shared) {
        return AhAttr { is_global: true, dlid: 0, ..ah };
    }
    AhAttr {
        is_global: true,
        dgid: subnet::destination(shared.hca.slot(), ah.dlid).to_ipv6_mapped().octets(),
        sgid_index: 0,
        hop_limit: 64,
        ..ah
    }
}
