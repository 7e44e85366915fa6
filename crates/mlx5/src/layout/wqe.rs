//! Work queue entries (PRM "Work Request (WQE) Formats"; `struct mlx5_wqe_ctrl_seg` and its
//! neighbours): requests as the driver writes them, as the HCA takes them.
//!
//! An entry is a control segment of 16 bytes and others in an order that its opcode and service
//! give, together up to 63 times 16 bytes, in basic blocks of 64.

use crate::layout::bits::{be16, be32, be64};
use crate::layout::request::RequestId;
use hca::{AhAttr, Payload, QpType, RecvWr, Remote, SendFlags, SendOp, SgList, Sge};

/// Bytes of a basic block.
pub(crate) const BLOCK: usize = 64;
const UNIT: usize = 16;

/// Does nothing, in its turn.
pub(crate) const NOP: u8 = 0x00;
const SEND_INVALIDATE: u8 = 0x01;
const RDMA_WRITE: u8 = 0x08;
const RDMA_WRITE_IMM: u8 = 0x09;
const SEND: u8 = 0x0a;
const SEND_IMM: u8 = 0x0b;
const RDMA_READ: u8 = 0x10;
const ATOMIC_COMPARE_SWAP: u8 = 0x11;
const ATOMIC_FETCH_ADD: u8 = 0x12;

/// In the control segment's `fm_ce_se`.
const COMPLETION: u8 = 2 << 2;
const SOLICITED: u8 = 1 << 1;
/// From this fence mode on earlier reads are waited for.
const FENCE: u8 = 2;

/// In a data segment's byte count: the bytes follow in the entry.
const INLINE: u32 = 1 << 31;
/// Key of the entry, of no length, that ends a receive list. A region may have this key as well.
const END_OF_LIST: u32 = 0x100;
/// In the address vector: all 48 bytes of it are there.
const EXTENDED_AV: u32 = 1 << 31;

/// The control segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control {
    pub(crate) opcode: u8,
    /// Units of 16 bytes of the whole entry.
    units: usize,
    flags: u8,
    immediate: u32,
}

impl Control {
    pub(crate) fn parse(bytes: &[u8]) -> Control {
        Control {
            opcode: be32(bytes, 0) as u8,
            units: (be32(bytes, 4) & 0x3f) as usize,
            flags: bytes.get(11).copied().unwrap_or(0),
            immediate: be32(bytes, 12),
        }
    }

    /// Immediate data, or the key that a request changes.
    pub(crate) fn immediate(&self) -> u32 {
        self.immediate
    }

    /// Whether it raises a completion.
    pub(crate) fn signaled(&self) -> bool {
        self.flags & COMPLETION != 0
    }

    /// Bytes of the whole entry.
    pub(crate) fn len(&self) -> usize {
        self.units * UNIT
    }

    /// Basic blocks of the whole entry; even an empty one takes one.
    pub(crate) fn blocks(&self) -> u16 {
        self.len().div_ceil(BLOCK).max(1) as u16
    }

    pub(crate) fn send_flags(&self) -> SendFlags {
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, self.signaled());
        flags.set(SendFlags::SOLICITED, self.flags & SOLICITED != 0);
        flags.set(SendFlags::FENCE, self.flags >> 5 >= FENCE);
        flags
    }
}

/// Why an entry is no request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Malformed {
    /// The opcode is not known, or not built.
    #[error("unknown opcode {0:#x}")]
    Opcode(u8),
    /// A segment is cut off.
    #[error("the entry is too short for its segments")]
    Short,
}

/// Where a datagram goes, as an entry says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    pub(crate) ah: AhAttr,
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
}

/// A send request as an entry describes it.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) op: SendOp,
    pub(crate) payload: Payload,
    pub(crate) flags: SendFlags,
    pub(crate) address: Option<Address>,
    pub(crate) xrc_srqn: u32,
}

/// Takes segments off the front.
struct Segments<'a>(&'a [u8]);

impl<'a> Segments<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (segment, rest) = self.0.split_at_checked(len).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(segment)
    }
}

/// A send request from the bytes of its entry.
pub(crate) fn send(kind: QpType, entry: &[u8]) -> Result<Send, Malformed> {
    let control = Control::parse(entry);
    let mut segments = Segments(entry.get(..control.len()).ok_or(Malformed::Short)?);
    segments.take(UNIT)?;
    let xrc_srqn = match kind {
        QpType::XrcSend => be32(segments.take(UNIT)?, 0) & 0xff_ffff,
        _ => 0,
    };
    let address = match kind {
        QpType::Ud => Some(address(&mut segments)?),
        _ => None,
    };
    let op = operation(&control, &mut segments)?;
    let payload = payload(segments)?;
    let flags = control.send_flags();
    Ok(Send { op, payload, flags, address, xrc_srqn })
}

fn operation(control: &Control, segments: &mut Segments<'_>) -> Result<SendOp, Malformed> {
    let mut remote = || -> Result<Remote, Malformed> {
        let segment = segments.take(UNIT)?;
        Ok(Remote { addr: be64(segment, 0), rkey: be32(segment, 8) })
    };
    Ok(match control.opcode {
        SEND => SendOp::Send,
        SEND_IMM => SendOp::SendImm(control.immediate),
        SEND_INVALIDATE => SendOp::SendInvalidate(control.immediate),
        RDMA_WRITE => SendOp::Write(remote()?),
        RDMA_WRITE_IMM => SendOp::WriteImm(remote()?, control.immediate),
        RDMA_READ => SendOp::Read(remote()?),
        ATOMIC_COMPARE_SWAP => {
            let remote = remote()?;
            let operands = segments.take(UNIT)?;
            let (swap, compare) = (be64(operands, 0), be64(operands, 8));
            SendOp::CompareSwap { remote, compare, swap }
        }
        ATOMIC_FETCH_ADD => {
            let remote = remote()?;
            SendOp::FetchAdd { remote, add: be64(segments.take(UNIT)?, 0) }
        }
        opcode => return Err(Malformed::Opcode(opcode)),
    })
}

/// The datagram segment (`struct mlx5_av`).
fn address(segments: &mut Segments<'_>) -> Result<Address, Malformed> {
    let base = segments.take(UNIT)?;
    let word = be32(base, 8);
    let mut ah = AhAttr {
        dlid: be16(base, 14),
        src_path_bits: base[13] & 0x7f,
        sl: base[12] & 0xf,
        port_num: 1,
        ..AhAttr::default()
    };
    if word & EXTENDED_AV != 0 {
        let extension = segments.take(2 * UNIT)?;
        let grh = be32(extension, 12);
        ah.traffic_class = extension[10];
        ah.hop_limit = extension[11];
        ah.is_global = grh >> 30 & 1 == 1;
        ah.flow_label = grh & 0xf_ffff;
        ah.sgid_index = (grh >> 20) as u8;
        // On an Ethernet the place of the LID has the UDP source port.
        ah.udp_src = ah.dlid;
        ah.dmac.copy_from_slice(&extension[4..10]);
        ah.dgid.copy_from_slice(&extension[16..]);
    }
    Ok(Address { ah, qpn: word & 0xff_ffff, qkey: be32(base, 0) })
}

/// Data segments: pointers, or bytes in place, or both, which then are copied together.
fn payload(mut segments: Segments<'_>) -> Result<Payload, Malformed> {
    let mut list = SgList::new();
    let mut inline: Option<Vec<u8>> = None;
    while !segments.0.is_empty() {
        let count = be32(segments.0, 0);
        if count & INLINE != 0 {
            let len = (count & !INLINE) as usize;
            let whole = segments.0.get(4..4 + len).ok_or(Malformed::Short)?;
            inline.get_or_insert_default().extend_from_slice(whole);
            let padded = (4 + len).next_multiple_of(UNIT).min(segments.0.len());
            segments.take(padded)?;
        } else {
            let segment = segments.take(UNIT)?;
            // In a send a count of 0 stands for 2^31.
            let length = if count == 0 { 1 << 31 } else { count };
            list.push(Sge { addr: be64(segment, 8), length, lkey: be32(segment, 4) });
        }
    }
    match inline {
        None => Ok(Payload::Gather(list)),
        Some(bytes) if list.is_empty() => Ok(Payload::Inline(bytes.into())),
        // No driver mixes them.
        Some(_) => Err(Malformed::Short),
    }
}

/// A receive request from its data segments.
pub(crate) fn receive(id: RequestId, segments: &[u8]) -> RecvWr {
    let mut scatter = SgList::new();
    for segment in segments.chunks_exact(UNIT) {
        let (length, lkey) = (be32(segment, 0), be32(segment, 4));
        if length == 0 && lkey == END_OF_LIST {
            break;
        }
        if length > 0 {
            scatter.push(Sge { addr: be64(segment, 8), length: length & !INLINE, lkey });
        }
    }
    RecvWr { wr_id: id.wr_id(), scatter }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(length: u32, lkey: u32) -> [u8; UNIT] {
        let mut segment = [0; UNIT];
        segment[..4].copy_from_slice(&length.to_be_bytes());
        segment[4..8].copy_from_slice(&lkey.to_be_bytes());
        segment
    }

    #[test]
    fn a_receive_list_ends_at_its_mark_and_not_at_a_key_of_that_number() {
        let list = [segment(64, 0x100), segment(32, 7), segment(0, 0x100), segment(16, 9)].concat();
        let request = receive(RequestId { counter: 0, opcode: 0, srqn: 0 }, &list);
        let found: Vec<_> = request.scatter.iter().map(|sge| (sge.length, sge.lkey)).collect();
        assert_eq!(found, [(64, 0x100), (32, 7)]);
    }
}
