//! Transport headers to bytes and back (IBA chapter 9).
//!
//! Both directions run for every packet at gigabytes a second: one table look-up says what an
//! opcode carries, lengths are checked once, and nothing is allocated. Parsing accepts any bytes
//! and answers with a value or a [`ParseError`]; reserved fields are ignored on receipt and zero on
//! emission, as the specification asks.

use super::headers::{Aeth, AtomicEth, Bth, Deth, Feth, Headers, NakCode, Reth, Syndrome};
use super::opcode::{Opcode, RESERVED_LEN};
use super::psn::Psn;
use std::fmt;

/// Length of a BTH in bytes.
pub const BTH_LEN: usize = 12;
/// Length of a DETH in bytes.
pub const DETH_LEN: usize = 8;

/// What a packet with this BTH does, if we carry it, and the queue pair that it is for.
#[inline]
pub fn peek(bth: &[u8; BTH_LEN]) -> (Option<Opcode>, u32) {
    (Opcode::from_byte(bth[0]), be32(bth, 4) & 0x00ff_ffff)
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParseError {
    /// Fewer bytes than the opcode's headers and padding need.
    Truncated,
    /// The opcode is reserved or of a service we do not carry.
    Opcode(u8),
    /// Transport header version is not 0.
    Version(u8),
    /// AETH syndrome is reserved.
    Syndrome(u8),
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParseError::Truncated => f.write_str("packet shorter than its headers and padding"),
            ParseError::Opcode(byte) => write!(f, "opcode {byte:#04x} is reserved or not carried"),
            ParseError::Version(version) => {
                write!(f, "transport header version {version} is not 0")
            }
            ParseError::Syndrome(byte) => write!(f, "AETH syndrome {byte:#04x} is reserved"),
        }
    }
}

impl std::error::Error for ParseError {}

impl NakCode {
    /// The five-bit code, or `None` when it is reserved.
    #[inline]
    pub const fn from_code(code: u8) -> Option<NakCode> {
        Some(match code {
            0 => NakCode::Sequence,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccess,
            3 => NakCode::RemoteOperational,
            4 => NakCode::InvalidRd,
            _ => return None,
        })
    }

    /// The five-bit code.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            NakCode::Sequence => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccess => 2,
            NakCode::RemoteOperational => 3,
            NakCode::InvalidRd => 4,
        }
    }
}

impl Syndrome {
    /// The syndrome that `byte` stands for, or `None` when it is reserved.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Syndrome> {
        let code = byte & 0x1f;
        match byte >> 5 {
            0b000 => Some(Syndrome::Ack(code)),
            0b001 => Some(Syndrome::RnrNak(code)),
            0b011 => match NakCode::from_code(code) {
                Some(nak) => Some(Syndrome::Nak(nak)),
                None => None,
            },
            _ => None,
        }
    }

    /// The byte on the wire; of a credit or timer code the low five bits count.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Syndrome::Ack(credits) => credits & 0x1f,
            Syndrome::RnrNak(timer) => 0x20 | timer & 0x1f,
            Syndrome::Nak(nak) => 0x60 | nak.code(),
        }
    }
}

impl Headers {
    /// Length in bytes that [`Headers::emit`] writes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "headers are never empty")]
    pub const fn len(&self) -> usize {
        self.bth.opcode.headers_len()
    }

    /// Writes the headers to the front of `out` and returns their length. Fields wider here than on
    /// the wire (24-bit numbers, `pad`) are cut to their low bits.
    ///
    /// # Panics
    /// When `out` is shorter than [`Headers::len`], or an extension that the opcode calls for is
    /// absent: both are mistakes of the caller, not of a peer.
    #[inline]
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let opcode = self.bth.opcode;
        let len = opcode.headers_len();
        let mut out = Writer(&mut out[..len]);
        let bth = &self.bth;
        out.put([
            opcode.to_byte(),
            (bth.solicited as u8) << 7 | (bth.migrated as u8) << 6 | (bth.pad & 3) << 4,
        ]);
        out.put(bth.pkey.to_be_bytes());
        out.put(u24(bth.dest_qp, (bth.fecn as u8) << 7 | (bth.becn as u8) << 6));
        out.put(u24(bth.psn.get(), (bth.ack_req as u8) << 7));
        if len > BTH_LEN {
            self.emit_extensions(out);
        }
        len
    }

    fn emit_extensions(&self, mut out: Writer<'_>) {
        let opcode = self.bth.opcode;
        if opcode.has_deth() {
            let deth = self.deth.expect("a datagram has a DETH");
            out.put(deth.qkey.to_be_bytes());
            out.put(u24(deth.src_qp, 0));
        }
        if opcode.has_xrceth() {
            out.put(u24(self.xrc_srqn.expect("an XRC request has an XRCETH"), 0));
        }
        if opcode.has_feth() {
            let feth = self.feth.expect("a FLUSH has a FETH");
            out.put([0, 0, 0, (feth.level & 3) << 4 | (feth.placement & 0xf)]);
        }
        if opcode.has_reth() {
            let reth = self.reth.expect("this opcode has a RETH");
            out.put(reth.va.to_be_bytes());
            out.put(reth.rkey.to_be_bytes());
            out.put(reth.len.to_be_bytes());
        }
        if opcode.has_atomic() {
            let atomic = self.atomic.expect("an atomic request has an AtomicETH");
            out.put(atomic.va.to_be_bytes());
            out.put(atomic.rkey.to_be_bytes());
            out.put(atomic.swap_or_add.to_be_bytes());
            out.put(atomic.compare.to_be_bytes());
        }
        if opcode.has_aeth() {
            let aeth = self.aeth.expect("this opcode has an AETH");
            out.put(u24(aeth.msn, aeth.syndrome.to_byte()));
        }
        if opcode.has_atomic_ack() {
            let original = self.atomic_ack.expect("an atomic acknowledge has an AtomicAckETH");
            out.put(original.to_be_bytes());
        }
        if opcode.has_imm() {
            out.put(self.imm.expect("this opcode has immediate data").to_be_bytes());
        }
        if opcode.has_invalidate() {
            out.put(self.invalidate.expect("this opcode has an IETH").to_be_bytes());
        }
        if opcode.has_reserved() {
            out.put([0; RESERVED_LEN]);
        }
    }

    /// Parses `packet`, which begins at the BTH and ends before the ICRC, into headers and payload
    /// (padding removed).
    ///
    /// # Errors
    /// [`ParseError`]. Whether the payload has the length that the opcode and the path MTU ask for
    /// is the transport's to judge.
    // Inlined, so that the 150 bytes of headers are written once, where the caller wants them.
    #[inline(always)]
    pub fn parse(packet: &[u8]) -> Result<(Headers, &[u8]), ParseError> {
        let Some((base, _)) = packet.split_first_chunk::<BTH_LEN>() else {
            return Err(ParseError::Truncated);
        };
        let version = base[1] & 0x0f;
        if version != 0 {
            return Err(ParseError::Version(version));
        }
        let dest_qp = be32(base, 4) & 0x00ff_ffff;
        let Some(opcode) = Opcode::from_byte(base[0]) else {
            return Err(ParseError::Opcode(base[0]));
        };
        let pad = base[1] >> 4 & 3;
        let mut headers = Headers::new(Bth {
            opcode,
            solicited: base[1] & 0x80 != 0,
            migrated: base[1] & 0x40 != 0,
            pad,
            pkey: u16::from_be_bytes([base[2], base[3]]),
            fecn: base[4] & 0x80 != 0,
            becn: base[4] & 0x40 != 0,
            dest_qp,
            ack_req: base[8] & 0x80 != 0,
            psn: Psn::new(be32(base, 8)),
        });
        let headers_len = opcode.headers_len();
        let Some(payload_end) = packet.len().checked_sub(pad as usize) else {
            return Err(ParseError::Truncated);
        };
        let Some(payload) = packet.get(headers_len..payload_end) else {
            return Err(ParseError::Truncated);
        };
        if headers_len > BTH_LEN {
            headers.parse_extensions(Reader(&packet[BTH_LEN..headers_len]))?;
        }
        Ok((headers, payload))
    }

    fn parse_extensions(&mut self, mut rest: Reader<'_>) -> Result<(), ParseError> {
        let opcode = self.bth.opcode;
        if opcode.has_deth() {
            self.deth = Some(Deth { qkey: rest.u32(), src_qp: rest.u32() & 0x00ff_ffff });
        }
        if opcode.has_xrceth() {
            self.xrc_srqn = Some(rest.u32() & 0x00ff_ffff);
        }
        if opcode.has_feth() {
            let bits = rest.u32() as u8;
            self.feth = Some(Feth { placement: bits & 0xf, level: bits >> 4 & 3 });
        }
        if opcode.has_reth() {
            self.reth = Some(Reth { va: rest.u64(), rkey: rest.u32(), len: rest.u32() });
        }
        if opcode.has_atomic() {
            self.atomic = Some(AtomicEth {
                va: rest.u64(),
                rkey: rest.u32(),
                swap_or_add: rest.u64(),
                compare: rest.u64(),
            });
        }
        if opcode.has_aeth() {
            let word = rest.u32();
            let byte = (word >> 24) as u8;
            let syndrome = Syndrome::from_byte(byte).ok_or(ParseError::Syndrome(byte))?;
            self.aeth = Some(Aeth { syndrome, msn: word & 0x00ff_ffff });
        }
        if opcode.has_atomic_ack() {
            self.atomic_ack = Some(rest.u64());
        }
        if opcode.has_imm() {
            self.imm = Some(rest.u32());
        }
        if opcode.has_invalidate() {
            self.invalidate = Some(rest.u32());
        }
        Ok(())
    }
}

/// Four wire bytes: `high`, then the low 24 bits of `value`.
#[inline]
const fn u24(value: u32, high: u8) -> [u8; 4] {
    (value & 0x00ff_ffff | (high as u32) << 24).to_be_bytes()
}

#[inline]
const fn be32(bytes: &[u8; BTH_LEN], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Takes big-endian words off the front of headers whose length was checked before.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    #[inline]
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (front, rest) = self.0.split_first_chunk::<N>().expect("length was checked");
        self.0 = rest;
        *front
    }
    #[inline]
    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }
    #[inline]
    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }
}

/// Puts bytes to the front of what is left.
struct Writer<'a>(&'a mut [u8]);

impl Writer<'_> {
    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        let (front, rest) =
            std::mem::take(&mut self.0).split_first_chunk_mut::<N>().expect("length was checked");
        *front = bytes;
        self.0 = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Operation;

    /// RDMA WRITE only with immediate, laid out by hand from IBA 9.2, 9.3.3 and 9.3.6.
    const WRITE_ONLY_IMM: [u8; 36] = [
        0x0b, 0xb0, 0xff, 0xff, 0x80, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef, // BTH
        0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x11, 0x12, 0x13, 0x14, 0, 0, 0,
        1, // RETH
        0xca, 0xfe, 0xf0, 0x0d, // ImmDt
        0x77, 0, 0, 0, // payload of one byte, three of padding
    ];

    #[test]
    fn every_field_is_where_the_specification_puts_it() {
        let (headers, payload) = Headers::parse(&WRITE_ONLY_IMM).unwrap();
        let mut expected = Headers::new(Bth {
            opcode: Opcode::from_byte(0x0b).unwrap(),
            solicited: true,
            migrated: false,
            pad: 3,
            pkey: 0xffff,
            fecn: true,
            becn: false,
            dest_qp: 0x12_3456,
            ack_req: true,
            psn: Psn::new(0xab_cdef),
        });
        expected.reth = Some(Reth { va: 0x0102_0304_0506_0708, rkey: 0x1112_1314, len: 1 });
        expected.imm = Some(0xcafe_f00d);
        assert_eq!(headers, expected);
        assert_eq!(payload, [0x77]);
        let mut out = [0xee; 40];
        assert_eq!(headers.emit(&mut out), 32);
        assert_eq!(out[..32], WRITE_ONLY_IMM[..32]);
        assert_eq!(out[32..], [0xee; 8], "nothing beyond the headers is touched");
    }

    /// FLUSH of a range to global visibility and persistence (IBA A19.4): BTH, FETH, RETH.
    #[test]
    fn a_flush_is_as_the_annex_lays_it_out() {
        let bytes: [u8; 32] = [
            0x1c, 0x40, 0xff, 0xff, 0, 0, 0, 7, 0x80, 0, 0, 9, // BTH
            0, 0, 0, 0x13, // FETH: level 1, both placements
            0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, // RETH
        ];
        let (headers, payload) = Headers::parse(&bytes).unwrap();
        assert_eq!(headers.feth, Some(Feth { placement: 3, level: 1 }));
        assert_eq!(headers.reth, Some(Reth { va: 0x1_0000_0002, rkey: 3, len: 4 }));
        assert!(payload.is_empty());
        let mut out = [0xee; 32];
        assert_eq!(headers.emit(&mut out), 32);
        assert_eq!(out, bytes);
    }

    #[test]
    fn every_shorter_packet_is_truncated() {
        for byte in 0..=u8::MAX {
            let Some(opcode) = Opcode::from_byte(byte) else { continue };
            let mut packet = [0; crate::packet::MAX_HEADERS_LEN];
            packet[0] = byte;
            let len = opcode.headers_len();
            for short in 0..len {
                assert_eq!(Headers::parse(&packet[..short]), Err(ParseError::Truncated));
            }
            assert_eq!(Headers::parse(&packet[..len]).unwrap().1, []);
        }
    }

    #[test]
    fn padding_longer_than_the_payload_is_truncated() {
        let mut packet = [0; 14];
        packet[0] = 0x04;
        packet[1] = 0x20;
        assert_eq!(Headers::parse(&packet).unwrap().1.len(), 0);
        packet[1] = 0x30;
        assert_eq!(Headers::parse(&packet), Err(ParseError::Truncated));
    }

    #[test]
    fn versions_and_reserved_opcodes_are_refused() {
        let mut packet = [0; 40];
        for version in 1..16 {
            packet[1] = version;
            assert_eq!(Headers::parse(&packet), Err(ParseError::Version(version)));
        }
        packet[1] = 0;
        for reserved in [0x15, 0x18, 0x1f, 0x2c, 0x36, 0x40, 0x60, 0x66, 0x80, 0xb5, 0xc0, 0xff] {
            packet[0] = reserved;
            assert_eq!(Headers::parse(&packet), Err(ParseError::Opcode(reserved)));
        }
    }

    #[test]
    fn a_congestion_notification_of_a_connectx_is_read_and_made() {
        let mut sample = [0; 28];
        sample[..8].copy_from_slice(&[0x81, 0, 0xff, 0xff, 0x40, 0, 0x01, 0x18]);
        let (headers, payload) = Headers::parse(&sample).unwrap();
        let bth = headers.bth;
        assert_eq!(bth.opcode.operation, Operation::CongestionNotification);
        assert_eq!((bth.dest_qp, bth.becn, bth.fecn), (0x118, true, false));
        assert_eq!((bth.psn, payload), (Psn::new(0), &[][..]));
        let mut made = [0xaa; 28];
        assert_eq!(headers.emit(&mut made), 28);
        assert_eq!(made, sample);
        assert_eq!(Headers::parse(&sample[..27]), Err(ParseError::Truncated));
    }

    #[test]
    fn syndromes_and_bytes_are_inverse() {
        let mut reserved = 0;
        let mut ack = [0; 16];
        ack[0] = 0x11;
        for byte in 0..=u8::MAX {
            ack[12] = byte;
            match Syndrome::from_byte(byte) {
                Some(syndrome) => {
                    assert_eq!(syndrome.to_byte(), byte);
                    let aeth = Headers::parse(&ack).unwrap().0.aeth.unwrap();
                    assert_eq!(aeth, Aeth { syndrome, msn: 0 });
                }
                None => {
                    reserved += 1;
                    assert_eq!(Headers::parse(&ack), Err(ParseError::Syndrome(byte)));
                }
            }
        }
        assert_eq!(reserved, 256 - 32 - 32 - 5);
    }

    #[test]
    #[should_panic(expected = "RETH")]
    fn emission_without_a_needed_extension_is_a_mistake() {
        let (mut headers, _) = Headers::parse(&WRITE_ONLY_IMM).unwrap();
        headers.reth = None;
        headers.emit(&mut [0; 64]);
    }
}
