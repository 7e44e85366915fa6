//! One packet of every opcode over IPv4 and IPv6, as bytes of an IP packet and as a pcap file: what
//! the tests against foreign dissectors and the `packets` example share.
#![allow(dead_code, reason = "each user needs another part")]

use std::net::{Ipv4Addr, Ipv6Addr};
use wire::icrc::{self, Addresses};
use wire::{
    Aeth, AtomicEth, Bth, Deth, Feth, Headers, NakCode, Opcode, Psn, ROCE_PORT, Reth, Syndrome,
};

pub const UDP_SOURCE: u16 = 49_321;
const UDP: u8 = 17;

/// One packet before it gets its network headers.
#[derive(Clone, Debug)]
pub struct Sample {
    pub addresses: Addresses,
    pub identification: u16,
    pub headers: Headers,
    pub payload: Vec<u8>,
}

/// Headers of `opcode` with every extension it calls for, each field different from the others.
pub fn headers_of(opcode: Opcode, payload_len: usize) -> Headers {
    let byte = u32::from(opcode.to_byte());
    let mut headers = Headers::new(Bth {
        opcode,
        solicited: byte & 1 != 0,
        migrated: byte & 1 == 0,
        pad: (payload_len.wrapping_neg() & 3) as u8,
        pkey: 0xffff,
        fecn: byte & 2 != 0,
        becn: byte & 4 != 0,
        dest_qp: 0x11_0000 | byte,
        ack_req: byte & 1 == 0,
        psn: Psn::new(0xfe_dc00 | byte),
    });
    if opcode.has_deth() {
        headers.deth = Some(Deth { qkey: 0x1122_3344, src_qp: 0x22_0000 | byte });
    }
    if opcode.has_xrceth() {
        headers.xrc_srqn = Some(0x33_0000 | byte);
    }
    if opcode.has_feth() {
        headers.feth = Some(Feth { placement: 1, level: 1 });
    }
    if opcode.has_reth() {
        let len = payload_len.max(1) as u32;
        headers.reth = Some(Reth { va: 0x7f00_dead_beef_0000, rkey: 0xaabb_0000 | byte, len });
    }
    if opcode.has_atomic() {
        headers.atomic = Some(AtomicEth {
            va: 0x7f00_cafe_f00d_0008,
            rkey: 0xccdd_0000 | byte,
            swap_or_add: 0x0102_0304_0506_0708,
            compare: 0x1112_1314_1516_1718,
        });
    }
    if opcode.has_aeth() {
        headers.aeth = Some(Aeth { syndrome: Syndrome::Ack(31), msn: 0x44_0000 | byte });
    }
    if opcode.has_atomic_ack() {
        headers.atomic_ack = Some(0x2122_2324_2526_2728);
    }
    if opcode.has_imm() {
        headers.imm = Some(0x5566_0000 | byte);
    }
    if opcode.has_invalidate() {
        headers.invalidate = Some(0x7788_0000 | byte);
    }
    headers
}

/// Every opcode, then every syndrome of interest, first over IPv4 and then over IPv6.
pub fn samples() -> Vec<Sample> {
    let v4 = Addresses::V4(Ipv4Addr::new(10, 11, 12, 13), Ipv4Addr::new(10, 11, 12, 14));
    let v6 = Addresses::V6(
        Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 0xa),
        Ipv6Addr::new(0xfd00, 0, 0, 1, 0, 0, 0, 0xb),
    );
    let acknowledge = Opcode::from_byte(0x11).expect("RC acknowledge");
    let syndromes = [
        Syndrome::Ack(0),
        Syndrome::RnrNak(0),
        Syndrome::RnrNak(12),
        Syndrome::Nak(NakCode::Sequence),
        Syndrome::Nak(NakCode::InvalidRequest),
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::Nak(NakCode::RemoteOperational),
        Syndrome::Nak(NakCode::InvalidRd),
    ];
    let mut samples = Vec::new();
    for addresses in [v4, v6] {
        for opcode in (0..=u8::MAX).filter_map(Opcode::from_byte) {
            // Lengths that need 0 to 3 bytes of padding take turns.
            let len = if opcode.has_payload() { 256 + usize::from(opcode.to_byte()) } else { 0 };
            samples.push(Sample {
                addresses,
                identification: u16::from(opcode.to_byte()) * 257,
                headers: headers_of(opcode, len),
                payload: (0..len).map(|i| (i * 7) as u8).collect(),
            });
        }
        for syndrome in syndromes {
            let mut headers = headers_of(acknowledge, 0);
            headers.aeth = Some(Aeth { syndrome, msn: 1 });
            samples.push(Sample { addresses, identification: 0, headers, payload: Vec::new() });
        }
    }
    samples
}

impl Sample {
    /// BTH to padding.
    pub fn transport(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.headers.len()];
        self.headers.emit(&mut bytes);
        bytes.extend(&self.payload);
        bytes.extend(std::iter::repeat_n(0, self.headers.bth.pad.into()));
        bytes
    }

    /// The IP packet, ICRC included, with right checksums.
    pub fn ip_packet(&self) -> Vec<u8> {
        let transport = self.transport();
        let icrc = icrc::compute(self.addresses, UDP_SOURCE, self.identification, &transport);
        let udp_len = (8 + transport.len() + 4) as u16;
        let mut udp = Vec::new();
        udp.extend(UDP_SOURCE.to_be_bytes());
        udp.extend(ROCE_PORT.to_be_bytes());
        udp.extend(udp_len.to_be_bytes());
        udp.extend([0, 0]);
        udp.extend(&transport);
        udp.extend(icrc.to_le_bytes());
        let mut pseudo = Vec::new();
        let mut ip = Vec::new();
        match self.addresses {
            Addresses::V4(source, destination) => {
                // ECT(0) and TTL 63: fields that the ICRC must not cover.
                ip.extend([0x45, 0x02]);
                ip.extend((udp_len + 20).to_be_bytes());
                ip.extend(self.identification.to_be_bytes());
                ip.extend([0x40, 0, 63, UDP, 0, 0]);
                ip.extend(source.octets());
                ip.extend(destination.octets());
                let sum = checksum(&ip);
                ip[10..12].copy_from_slice(&sum.to_be_bytes());
                pseudo.extend(source.octets());
                pseudo.extend(destination.octets());
            }
            Addresses::V6(source, destination) => {
                ip.extend([0x60, 0x21, 0x23, 0x45]);
                ip.extend(udp_len.to_be_bytes());
                ip.extend([UDP, 61]);
                ip.extend(source.octets());
                ip.extend(destination.octets());
                pseudo.extend(source.octets());
                pseudo.extend(destination.octets());
            }
        }
        pseudo.extend([0, UDP]);
        pseudo.extend(udp_len.to_be_bytes());
        pseudo.extend(&udp);
        let sum = match checksum(&pseudo) {
            0 => 0xffff,
            sum => sum,
        };
        udp[6..8].copy_from_slice(&sum.to_be_bytes());
        ip.extend(udp);
        ip
    }
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// What stands before the IP packet in a capture.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    Raw,
    Ethernet,
    Vlan,
    Sll,
    Sll2,
}

impl Link {
    pub const ALL: [Link; 5] = [Link::Raw, Link::Ethernet, Link::Vlan, Link::Sll, Link::Sll2];

    fn linktype(self) -> u32 {
        match self {
            Link::Raw => 101,
            Link::Ethernet | Link::Vlan => 1,
            Link::Sll => 113,
            Link::Sll2 => 276,
        }
    }

    fn header(self, ip: &[u8]) -> Vec<u8> {
        let ethertype: [u8; 2] = if ip[0] >> 4 == 4 { [0x08, 0x00] } else { [0x86, 0xdd] };
        let macs = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        match self {
            Link::Raw => Vec::new(),
            Link::Ethernet => [&macs[..], &ethertype].concat(),
            Link::Vlan => [&macs[..], &[0x81, 0x00, 0x20, 0x07], &ethertype].concat(),
            // Packet type, ARPHRD, address length, address; then the protocol.
            Link::Sll => [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 2, 0, 0][..], &ethertype].concat(),
            // The protocol, reserved, interface, ARPHRD, packet type, address length, address.
            Link::Sll2 => {
                let rest = [0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 2, 0, 0];
                [&ethertype[..], &rest].concat()
            }
        }
    }
}

/// A pcap file of these IP packets.
pub fn pcap(link: Link, packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend(0xa1b2_c3d4_u32.to_le_bytes());
    file.extend(2u16.to_le_bytes());
    file.extend(4u16.to_le_bytes());
    for word in [0, 0, 65_535, link.linktype()] {
        file.extend(word.to_le_bytes());
    }
    for (number, ip) in packets.iter().enumerate() {
        let frame = [link.header(ip), ip.clone()].concat();
        for word in [1_000_000, number as u32, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}
