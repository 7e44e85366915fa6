//! The two packets that connections exchange most, read and written without [`Headers`]: a SEND of
//! one short packet, and an acknowledge of success.
//!
//! Their bytes are those that [`Headers`] reads and writes, with what nearly all of them have: the
//! default partition, no mark of congestion, and for a SEND that it asks for an acknowledge. A
//! packet that has anything else is none of these, and is to be read as every other.
//!
//! [`Headers`]: crate::Headers

use super::{BTH_LEN, Psn};
use crate::DEFAULT_PKEY;
use crate::field::{be16, be24, be32};

/// Longest payload of a short SEND, in bytes.
pub const SHORT_PAYLOAD: usize = 192;
/// Bytes of immediate data, or of an AETH.
const EXTENSION_LEN: usize = 4;
/// Longest short packet, in bytes.
pub const SHORT_PACKET: usize = BTH_LEN + EXTENSION_LEN + SHORT_PAYLOAD;
/// Length of an acknowledge, in bytes.
pub const ACK_LEN: usize = BTH_LEN + EXTENSION_LEN;

/// Opcodes (IBA table 38).
const SEND_ONLY: u8 = 0x04;
const SEND_ONLY_IMM: u8 = 0x05;
const ACKNOWLEDGE: u8 = 0x11;
/// Bits of the byte behind the opcode: solicited event, migrated, and where the pad count is.
const SOLICITED: u8 = 0x80;
const MIGRATED: u8 = 0x40;
const PAD_SHIFT: u32 = 4;
const PAD: u8 = 3 << PAD_SHIFT;
/// Asks for an acknowledge.
const ACK_REQ: u8 = 0x80;
/// An acknowledge that gives no end-to-end credits, and the bits that make any an acknowledge.
const NO_CREDITS: u8 = 31;
const KIND: u8 = 0xe0;

/// A short packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Short<'a> {
    /// A SEND and its payload, without padding.
    Send(ShortSend, &'a [u8]),
    /// An acknowledge of success.
    Ack(ShortAck),
}

/// What a SEND of one packet says besides its payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShortSend {
    /// Destination queue pair number, 24 bits.
    pub dest_qp: u32,
    /// Packet sequence number.
    pub psn: Psn,
    /// Immediate data, if there is any.
    pub imm: Option<u32>,
    /// Requests a solicited event.
    pub solicited: bool,
}

/// What an acknowledge of success says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShortAck {
    /// Destination queue pair number, 24 bits.
    pub dest_qp: u32,
    /// The latest packet that is acknowledged.
    pub psn: Psn,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

impl<'a> Short<'a> {
    /// Reads a packet, which begins at the BTH and ends before the ICRC; `None` where it is none of
    /// these two.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Option<Short<'a>> {
        let (base, rest) = packet.split_first_chunk::<BTH_LEN>()?;
        let [opcode, flags, _, _, marks, _, _, _, asks, ..] = *base;
        let usual = flags & !(SOLICITED | PAD) == MIGRATED && marks == 0;
        if !usual || be16(base, 2..4) != DEFAULT_PKEY {
            return None;
        }
        let (dest_qp, psn) = (be24(base, 5..8), Psn::new(be24(base, 9..12)));
        let pad = usize::from((flags & PAD) >> PAD_SHIFT);
        match (opcode, asks) {
            (SEND_ONLY | SEND_ONLY_IMM, ACK_REQ) => {
                let (imm, padded) = match opcode {
                    SEND_ONLY => (None, rest),
                    _ => {
                        let (imm, padded) = rest.split_first_chunk()?;
                        (Some(u32::from_be_bytes(*imm)), padded)
                    }
                };
                let payload = padded.get(..padded.len().checked_sub(pad)?)?;
                let solicited = flags & SOLICITED != 0;
                let fits = payload.len() <= SHORT_PAYLOAD;
                fits.then_some(Short::Send(ShortSend { dest_qp, psn, imm, solicited }, payload))
            }
            (ACKNOWLEDGE, 0) if flags == MIGRATED && rest.len() == EXTENSION_LEN => {
                let word = be32(rest, 0..4);
                let is_ack = (word >> 24) as u8 & KIND == 0;
                is_ack.then_some(Short::Ack(ShortAck { dest_qp, psn, msn: word & 0x00ff_ffff }))
            }
            _ => None,
        }
    }

    /// The queue pair that it is for.
    pub fn dest_qp(&self) -> u32 {
        match self {
            Short::Send(send, _) => send.dest_qp,
            Short::Ack(ack) => ack.dest_qp,
        }
    }
}

impl ShortSend {
    /// Where in its packet the payload begins.
    pub const fn payload_at(&self) -> usize {
        BTH_LEN + if self.imm.is_some() { EXTENSION_LEN } else { 0 }
    }

    /// Writes what stands before and behind a payload of `payload_len` bytes, which the caller
    /// writes, and answers how long the packet is; `None` where that is too long.
    #[inline]
    pub fn emit(&self, payload_len: usize, packet: &mut [u8; SHORT_PACKET]) -> Option<usize> {
        if payload_len > SHORT_PAYLOAD {
            return None;
        }
        let pad = payload_len.wrapping_neg() & 3;
        let opcode = if self.imm.is_some() { SEND_ONLY_IMM } else { SEND_ONLY };
        let solicited = if self.solicited { SOLICITED } else { 0 };
        let flags = solicited | MIGRATED | (pad as u8) << PAD_SHIFT;
        emit_bth(packet, opcode, flags, self.dest_qp, ACK_REQ, self.psn);
        if let Some(imm) = self.imm {
            packet[BTH_LEN..][..EXTENSION_LEN].copy_from_slice(&imm.to_be_bytes());
        }
        let end = self.payload_at() + payload_len;
        packet[end..end + pad].fill(0);
        Some(end + pad)
    }
}

impl ShortAck {
    /// Writes it.
    #[inline]
    pub fn emit(&self, packet: &mut [u8; ACK_LEN]) {
        emit_bth(packet, ACKNOWLEDGE, MIGRATED, self.dest_qp, 0, self.psn);
        let aeth = u32::from(NO_CREDITS) << 24 | self.msn & 0x00ff_ffff;
        packet[BTH_LEN..].copy_from_slice(&aeth.to_be_bytes());
    }
}

#[inline]
fn emit_bth(packet: &mut [u8], opcode: u8, flags: u8, dest_qp: u32, asks: u8, psn: Psn) {
    let Some(base) = packet.first_chunk_mut::<BTH_LEN>() else { return };
    let [_, q2, q1, q0] = dest_qp.to_be_bytes();
    let [_, p2, p1, p0] = psn.get().to_be_bytes();
    let [k1, k0] = DEFAULT_PKEY.to_be_bytes();
    *base = [opcode, flags, k1, k0, 0, q2, q1, q0, asks, p2, p1, p0];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Aeth, Bth, Headers, Opcode, Operation, Position, Service, Syndrome};

    fn headers(operation: Operation, imm: Option<u32>) -> Headers {
        let (service, position, invalidate) = (Service::Rc, Position::Only, false);
        let mut headers = Headers::new(Bth {
            opcode: Opcode { service, operation, position, imm: imm.is_some(), invalidate },
            solicited: false,
            migrated: true,
            pad: 0,
            pkey: DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp: 0x12_3456,
            ack_req: operation == Operation::Send,
            psn: Psn::new(0xab_cdef),
        });
        headers.imm = imm;
        headers
    }

    /// A packet as [`Headers`] writes it.
    fn packet(headers: &Headers, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; headers.len()];
        headers.emit(&mut packet);
        packet.extend_from_slice(payload);
        packet.resize(packet.len() + usize::from(headers.bth.pad), 0);
        packet
    }

    #[test]
    fn a_short_send_has_the_bytes_that_headers_write() {
        let bytes: Vec<u8> = (1..=SHORT_PAYLOAD as u8).collect();
        for (len, imm, solicited) in (0..=SHORT_PAYLOAD)
            .flat_map(|len| [None, Some(0xcafe_f00d)].map(|imm| (len, imm)))
            .flat_map(|(len, imm)| [false, true].map(|solicited| (len, imm, solicited)))
        {
            let mut headers = headers(Operation::Send, imm);
            headers.bth.solicited = solicited;
            headers.bth.pad = (len.wrapping_neg() & 3) as u8;
            let wanted = packet(&headers, &bytes[..len]);
            let send = ShortSend { dest_qp: 0x12_3456, psn: headers.bth.psn, imm, solicited };
            let mut written = [0xee; SHORT_PACKET];
            written[send.payload_at()..][..len].copy_from_slice(&bytes[..len]);
            let end = send.emit(len, &mut written).unwrap();
            assert_eq!(written[..end], wanted, "{len} bytes");
            assert_eq!(Short::parse(&wanted), Some(Short::Send(send, &bytes[..len])));
        }
        let send = ShortSend { dest_qp: 1, psn: Psn::new(0), imm: None, solicited: false };
        assert_eq!(send.emit(SHORT_PAYLOAD + 1, &mut [0; SHORT_PACKET]), None);
    }

    #[test]
    fn an_acknowledge_has_the_bytes_that_headers_write() {
        let mut headers = headers(Operation::Acknowledge, None);
        let ack = ShortAck { dest_qp: 0x12_3456, psn: headers.bth.psn, msn: 0x65_4321 };
        headers.aeth = Some(Aeth { syndrome: Syndrome::Ack(NO_CREDITS), msn: ack.msn });
        let mut written = [0xee; ACK_LEN];
        ack.emit(&mut written);
        assert_eq!(written, *packet(&headers, &[]));
        assert_eq!(Short::parse(&written), Some(Short::Ack(ack)));
        for syndrome in [0x20, 0x60, 0x63, 0x80, 0xff] {
            written[BTH_LEN] = syndrome;
            assert_eq!(Short::parse(&written), None, "{syndrome:#x}");
        }
    }

    /// Every packet that is read as a short one is read by [`Headers`], to the same. Each byte of
    /// the BTH takes every value, in packets of every length.
    #[test]
    fn whatever_is_a_short_packet_says_the_same_to_all() {
        let ack = headers(Operation::Acknowledge, None);
        let aeth = Some(Aeth { syndrome: Syndrome::Ack(7), msn: 9 });
        let seeds = [
            packet(&headers(Operation::Send, None), &[1; 9]),
            packet(&headers(Operation::Send, Some(77)), &[2; 5]),
            packet(&Headers { aeth, ..ack }, &[]),
        ];
        let mut short = 0;
        for (seed, at) in seeds.iter().flat_map(|seed| (0..BTH_LEN + 1).map(move |at| (seed, at))) {
            for value in 0..=u8::MAX {
                let mut changed = seed.clone();
                changed[at] = value;
                for len in 0..=changed.len() {
                    let Some(read) = Short::parse(&changed[..len]) else { continue };
                    short += 1;
                    let (headers, payload) = Headers::parse(&changed[..len]).unwrap();
                    let bth = headers.bth;
                    let usual = bth.migrated && !bth.fecn && !bth.becn && bth.pkey == DEFAULT_PKEY;
                    assert!(usual && bth.opcode.service == Service::Rc, "{headers:?}");
                    let psn = bth.psn;
                    let again = match bth.opcode.operation {
                        Operation::Send => {
                            let (imm, solicited) = (headers.imm, bth.solicited);
                            let only = bth.opcode.position == Position::Only;
                            assert!(bth.ack_req && only && !bth.opcode.invalidate, "{headers:?}");
                            Short::Send(
                                ShortSend { dest_qp: bth.dest_qp, psn, imm, solicited },
                                payload,
                            )
                        }
                        _ => {
                            let Aeth { syndrome, msn } = headers.aeth.unwrap();
                            assert!(matches!(syndrome, Syndrome::Ack(_)) && payload.is_empty());
                            Short::Ack(ShortAck { dest_qp: bth.dest_qp, psn, msn })
                        }
                    };
                    assert_eq!(read, again);
                    assert_eq!(read.dest_qp(), bth.dest_qp);
                }
            }
        }
        assert!(short > 10_000, "{short} packets were short ones");
    }
}
