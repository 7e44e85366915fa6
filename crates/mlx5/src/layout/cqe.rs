//! Completion queue entries (PRM "Completion Queue Entry", `struct mlx5_cqe64`,
//! `struct mlx5_err_cqe`): an HCA's completion as the driver reads it.

use crate::layout::bits::put;
use crate::layout::request::RequestId;
use crate::layout::tag_cqe::{self, Role};
use hca::DEFAULT_PKEY;
use hca::{
    BadSignature, Completion, GuardKind, Signature, SignatureFault, WcFlags, WcOpcode, WcStatus,
};

/// Bytes of an entry that mean anything; in queues of 128 bytes an entry they are the latter half.
pub(crate) const LEN: usize = 64;

const ML_PATH: usize = 0x11;
const SLID: usize = 0x16;
const FLAGS_RQPN: usize = 0x18;
const KINDS: usize = 0x1d;
const TAG: usize = 0x1e;
/// A shared receive queue, or what user space calls the queue.
const QUEUE_NAME: usize = 0x20;
const IMMEDIATE: usize = 0x24;
const BYTE_COUNT: usize = 0x2c;
const TIMESTAMP: usize = 0x30;
const OPCODE_QPN: usize = 0x38;
const WQE_COUNTER: usize = 0x3c;
/// Opcode in the high 4 bits, owner in the lowest.
pub(crate) const OPCODE_OWNER: usize = 0x3f;

/// In [`KINDS`]: the control information of a VLAN tag is in [`TAG`].
const TAGGED: u8 = 1;
/// In [`FLAGS_RQPN`]: a GRH, or an IP header, is before the data.
const GRH: u32 = 1 << 28;

const VENDOR_SYNDROME: usize = 0x36;
const SYNDROME: usize = 0x37;

const REQUEST: u8 = 0;
const RESPONSE_WRITE_IMM: u8 = 1;
const RESPONSE_SEND: u8 = 2;
const RESPONSE_SEND_IMM: u8 = 3;
const RESPONSE_SEND_INV: u8 = 4;
const RESIZED: u8 = 5;
const NO_PACKET: u8 = 6;
const SIGNATURE_ERROR: u8 = 12;
const REQUEST_ERROR: u8 = 13;
const RESPONSE_ERROR: u8 = 14;

/// The completion of request `id` as an entry, but for its owner bit. `name` is what user space
/// calls the queue.
pub(crate) fn encode(completion: &Completion, id: RequestId, name: u32) -> [u8; LEN] {
    let mut entry = [0; LEN];
    put(&mut entry, QUEUE_NAME, &name.to_be_bytes());
    let opcode_qpn = u32::from(id.opcode) << 24 | completion.qp_num & 0xff_ffff;
    put(&mut entry, OPCODE_QPN, &opcode_qpn.to_be_bytes());
    put(&mut entry, WQE_COUNTER, &id.counter.to_be_bytes());
    let receives = completion.opcode as u32 >= WcOpcode::Recv as u32;
    let role = tag_cqe::encode(completion, id, &mut entry);
    let opcode = if role == Role::NoPacket {
        NO_PACKET
    } else if completion.status != WcStatus::Success && role == Role::None {
        entry[VENDOR_SYNDROME] = completion.vendor_err as u8;
        entry[SYNDROME] = syndrome(completion.status);
        if receives { RESPONSE_ERROR } else { REQUEST_ERROR }
    } else {
        put(&mut entry, BYTE_COUNT, &completion.byte_len.to_be_bytes());
        put(&mut entry, TIMESTAMP, &completion.timestamp_ns.to_be_bytes());
        if receives { received(completion, &mut entry) } else { REQUEST }
    };
    entry[OPCODE_OWNER] = opcode << 4;
    entry
}

/// The entry that ends a queue's old place, but for its owner bit.
pub(crate) fn resized() -> [u8; LEN] {
    let mut entry = [0; LEN];
    entry[OPCODE_OWNER] = RESIZED << 4;
    entry
}

/// An entry that tells of a failed check of block signatures (`struct mlx5_sigerr_cqe`), but for
/// its owner bit.
pub(crate) fn bad_signature(found: &BadSignature) -> [u8; LEN] {
    const EXPECTED: usize = 0x10;
    const ACTUAL: usize = 0x14;
    const EXPECTED_LOW: usize = 0x18;
    const ACTUAL_LOW: usize = 0x1c;
    const FAULT: usize = 0x20;
    const DOMAIN: usize = 0x23;
    const KEY: usize = 0x24;
    const OFFSET: usize = 0x28;
    let (fault, shift) = match (found.error.fault, found.signature) {
        (SignatureFault::RefTag, _) => (1u16 << 11, 0),
        (SignatureFault::AppTag, _) => (1 << 12, 32),
        (SignatureFault::Guard, Signature::T10Dif(_)) => (1 << 13, 48),
        (SignatureFault::Guard, Signature::Crc { guard: GuardKind::Crc64Xp10, .. }) => (1 << 13, 0),
        (SignatureFault::Guard, Signature::Crc { .. }) => (1 << 13, 32),
    };
    let mut entry = [0; LEN];
    let values = [found.error.expected, found.error.actual].map(|value| value << shift);
    for (value, high, low) in [(values[0], EXPECTED, EXPECTED_LOW), (values[1], ACTUAL, ACTUAL_LOW)]
    {
        put(&mut entry, high, &((value >> 32) as u32).to_be_bytes());
        put(&mut entry, low, &(value as u32).to_be_bytes());
    }
    put(&mut entry, FAULT, &fault.to_be_bytes());
    entry[DOMAIN] = u8::from(!found.on_wire);
    put(&mut entry, KEY, &found.key.to_be_bytes());
    put(&mut entry, OFFSET, &found.error.offset.to_be_bytes());
    entry[OPCODE_OWNER] = SIGNATURE_ERROR << 4;
    entry
}

/// What only a receive has; gives the opcode.
fn received(completion: &Completion, entry: &mut [u8; LEN]) -> u8 {
    let with_imm = completion.flags.contains(WcFlags::WITH_IMM);
    // A datagram's P_Key stands where immediate data would.
    let pkey = completion.src_ip.is_some() && !with_imm;
    let word = if pkey { u32::from(DEFAULT_PKEY) } else { completion.imm_or_key };
    put(entry, IMMEDIATE, &word.to_be_bytes());
    put(entry, FLAGS_RQPN, &(completion.src_qp & 0xff_ffff).to_be_bytes());
    if let Some(ip) = completion.src_ip {
        match hca::subnet::lid_of_address(ip) {
            Some(slid) => {
                put(entry, SLID, &slid.to_be_bytes());
                if completion.flags.contains(WcFlags::GRH) {
                    let word = completion.src_qp & 0xff_ffff | GRH;
                    put(entry, FLAGS_RQPN, &word.to_be_bytes());
                }
            }
            None => {
                // The kind of IP header that stands in the place of a GRH.
                let word = completion.src_qp & 0xff_ffff | u32::from(completion.sl) << 24 | GRH;
                put(entry, FLAGS_RQPN, &word.to_be_bytes());
            }
        }
    }
    if let Some(tag) = completion.vlan {
        entry[KINDS] |= TAGGED;
        put(entry, TAG, &tag.to_be_bytes());
    }
    entry[ML_PATH] = 0;
    if completion.opcode == WcOpcode::RecvRdmaWithImm {
        RESPONSE_WRITE_IMM
    } else if completion.flags.contains(WcFlags::WITH_INV) {
        RESPONSE_SEND_INV
    } else if with_imm {
        RESPONSE_SEND_IMM
    } else {
        RESPONSE_SEND
    }
}

/// `MLX5_CQE_SYNDROME_*`.
fn syndrome(status: WcStatus) -> u8 {
    match status {
        WcStatus::LocLenErr => 0x01,
        WcStatus::LocProtErr => 0x04,
        WcStatus::WrFlushErr => 0x05,
        WcStatus::MwBindErr => 0x06,
        WcStatus::BadRespErr => 0x10,
        WcStatus::LocAccessErr => 0x11,
        WcStatus::RemInvReqErr => 0x12,
        WcStatus::RemAccessErr => 0x13,
        WcStatus::RemOpErr => 0x14,
        WcStatus::RetryExcErr => 0x15,
        WcStatus::RnrRetryExcErr => 0x16,
        WcStatus::RemAbortErr => 0x22,
        _ => 0x02, // local QP operation
    }
}
