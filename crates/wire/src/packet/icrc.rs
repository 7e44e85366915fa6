//! The invariant CRC of RoCEv2 (IBA A17.3.3): CRC-32 over a masked pseudo header, the IP, UDP and
//! transport headers with their variant fields set to ones, and the payload with its padding.
//!
//! What is hashed, in order: 8 bytes of ones (the link header that RoCE lacks); the IP header with
//! DSCP, ECN, flow label, TTL or hop limit, and checksum as ones; the UDP header with its checksum
//! as ones; the BTH with its fifth byte (FECN, BECN, reserved) as ones; all that follows up to the
//! ICRC. TTL and the like may change on the way and are not covered. IPv4 options do not occur.
//!
//! A CRC is linear, and this module lives on it. Everything before the BTH comes down to one 32-bit
//! register value: a constant of the flow, plus a fixed table of the length, plus a fixed table of
//! the IPv4 identification. Also the mask of the BTH's fifth byte can be moved into that value (a
//! change four bytes later, divided by x^32). So each packet costs a few look-ups and one run of
//! CRC over its transport bytes as they are. For the same reason the identification that a packet's
//! ICRC was made with can be solved for when a receiver cannot see it (design D6).

use super::codec::BTH_LEN;
use super::crc_field::{Times, x8_pow, x8_pow_neg};
use crate::ROCE_PORT;
use crate::field::put;
use crate::network::ip::PROTOCOL_UDP;
use crate::network::{ipv4, ipv6, udp};
use crc32fast::Hasher;
use std::net::{Ipv4Addr, Ipv6Addr};

pub use crate::network::ip::Addresses;

const UDP_LEN: u32 = udp::HEADER_LEN as u32;
/// Bytes from the beginning of a field of the IPv4 header to the end of the UDP header.
const fn ipv4_to_bth(field: usize) -> u32 {
    (ipv4::HEADER_LEN - field) as u32 + UDP_LEN
}
const IDENTIFICATION_TO_BTH: u32 = ipv4_to_bth(ipv4::field::IDENTIFICATION.start);
const IPV6_LENGTH_TO_BTH: u32 =
    (ipv6::HEADER_LEN - ipv6::field::PAYLOAD_LENGTH.start) as u32 + UDP_LEN;
const UDP_LENGTH_TO_BTH: u32 = UDP_LEN - udp::field::LENGTH.start as u32;

static IPV4_LENGTH: Times<4> = Times::new(x8_pow(ipv4_to_bth(ipv4::field::TOTAL_LENGTH.start)));
static IPV4_IDENTIFICATION: Times<4> = Times::new(x8_pow(IDENTIFICATION_TO_BTH));
static IPV6_LENGTH: Times<4> = Times::new(x8_pow(IPV6_LENGTH_TO_BTH));
static UDP_LENGTH: Times<4> = Times::new(x8_pow(UDP_LENGTH_TO_BTH));
/// A change of the BTH's fifth byte as a change of the register before the BTH.
static BTH_FIFTH: Times<4> = Times::new(x8_pow_neg(4));

/// ICRC of `transport` (BTH to padding). `identification` counts on IPv4 only, where DF is taken as
/// set. The result is the value whose little-endian bytes go on the wire.
///
/// Who sends more than one packet of a flow keeps a [`FlowCrc`].
pub fn compute(addresses: Addresses, udp_src: u16, identification: u16, transport: &[u8]) -> u32 {
    FlowCrc::new(addresses, udp_src).icrc(identification, transport)
}

/// Whether `icrc` fits `transport`. On IPv6 exact; on IPv4 for at least one identification, `hint`
/// tried first (design decision D6).
///
/// Who receives more than one packet keeps a [`Checker`].
pub fn check(addresses: Addresses, udp_src: u16, hint: u16, transport: &[u8], icrc: u32) -> bool {
    Checker::new().check(addresses, udp_src, hint, transport, icrc).is_some()
}

/// An IPv4 header as the ICRC covers it, with lengths and identification left open.
fn masked_ipv4(src: Ipv4Addr, dst: Ipv4Addr) -> ipv4::Repr {
    ipv4::Repr {
        src,
        dst,
        protocol: PROTOCOL_UDP,
        tos: 0xff,
        ttl: 0xff,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        total_len: 0,
    }
}

/// An IPv6 header as the ICRC covers it, with the length left open.
fn masked_ipv6(src: Ipv6Addr, dst: Ipv6Addr) -> ipv6::Repr {
    ipv6::Repr {
        src,
        dst,
        flow_label: ipv6::FLOW_LABEL,
        next_header: PROTOCOL_UDP,
        traffic_class: 0xff,
        hop_limit: 0xff,
        payload_len: 0,
    }
}

/// The hashed headers of one flow, that is one pair of addresses and UDP source port, with length
/// and identification left open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowCrc {
    register: u32,
    ipv4: bool,
}

impl FlowCrc {
    /// Hashes the headers of a flow.
    pub fn new(addresses: Addresses, udp_src: u16) -> FlowCrc {
        let mut hasher = Hasher::new();
        hasher.update(&[0xff; 8]);
        let ipv4 = match addresses {
            Addresses::V4(src, dst) => {
                let mut ip = masked_ipv4(src, dst).emit();
                put(&mut ip, ipv4::field::CHECKSUM, &[0xff; 2]);
                hasher.update(&ip);
                true
            }
            Addresses::V6(src, dst) => {
                hasher.update(&masked_ipv6(src, dst).emit());
                false
            }
        };
        let mut udp = udp::Repr { src: udp_src, dst: ROCE_PORT, len: 0 }.emit();
        put(&mut udp, udp::field::CHECKSUM, &[0xff; 2]);
        hasher.update(&udp);
        FlowCrc { register: hasher.finalize(), ipv4 }
    }

    /// ICRC of `transport` (BTH to padding) in a packet with this `identification`, which counts on
    /// IPv4 only. The little-endian bytes of the result go on the wire.
    ///
    /// Lengths that no IP packet can have give a value that means nothing.
    #[inline]
    pub fn icrc(&self, identification: u16, transport: &[u8]) -> u32 {
        self.at_length(transport.len()).icrc(identification, transport)
    }

    /// The same with the transport bytes' length filled in: for trains of packets of equal length.
    #[inline]
    pub fn at_length(&self, transport_len: usize) -> LengthCrc {
        let udp_len = transport_len as u32 + UDP_LEN + crate::ICRC_LEN as u32;
        let ip_length = if self.ipv4 {
            IPV4_LENGTH.apply(swapped(udp_len + ipv4::HEADER_LEN as u32))
        } else {
            IPV6_LENGTH.apply(swapped(udp_len))
        };
        let register = self.register ^ ip_length ^ UDP_LENGTH.apply(swapped(udp_len));
        LengthCrc { register, ipv4: self.ipv4 }
    }
}

/// The hashed headers of the packets of one flow and length; see [`FlowCrc::at_length`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LengthCrc {
    register: u32,
    ipv4: bool,
}

impl LengthCrc {
    /// ICRC of `transport`, which has the length that this value was made for; else as
    /// [`FlowCrc::icrc`].
    #[inline]
    pub fn icrc(&self, identification: u16, transport: &[u8]) -> u32 {
        let mut register = self.register;
        if self.ipv4 {
            register ^= IPV4_IDENTIFICATION.apply(swapped(identification.into()));
        }
        if let Some(fifth) = transport.get(4) {
            register ^= BTH_FIFTH.apply((!fifth).into());
        }
        let mut hasher = Hasher::new_with_initial(register);
        hasher.update(transport);
        hasher.finalize()
    }
}

/// A 16-bit field as the CRC register meets it: first byte on the wire lowest.
#[inline]
fn swapped(field: u32) -> u32 {
    (field as u16).swap_bytes().into()
}

/// Checks ICRCs on receipt, and remembers what it worked out for flows and lengths seen last.
///
/// On IPv4 the identification is covered by the ICRC but hidden from a UDP socket. The hint is
/// tried first; else the 16 bits are solved for, and the packet is good when a solution exists. A
/// corrupted packet so passes with probability 2^-16 on IPv4, and 2^-32 on IPv6.
pub struct Checker {
    flow: Option<(Addresses, u16, FlowCrc)>,
    solvers: [Solver; Checker::LENGTHS],
    next_solver: usize,
}

/// Undoes what the bytes from the identification to the end of a packet did to a change of the
/// identification.
#[derive(Clone, Copy)]
struct Solver {
    transport_len: usize,
    factor: Times<8>,
}

impl Checker {
    /// How many lengths are remembered: a flow has a middle, a first, a last and an acknowledge
    /// length.
    const LENGTHS: usize = 8;

    /// Remembers nothing yet.
    pub fn new() -> Checker {
        // No packet has the length 0, see `check`.
        let unused = Solver { transport_len: 0, factor: Times::new(0) };
        Checker { flow: None, solvers: [unused; Checker::LENGTHS], next_solver: 0 }
    }

    /// The identification with which `icrc` (read as little-endian) fits `transport` (BTH to
    /// padding), 0 on IPv6; `None` when it does not fit or the length is none that a packet can
    /// have.
    #[inline]
    pub fn check(
        &mut self,
        addresses: Addresses,
        udp_src: u16,
        hint: u16,
        transport: &[u8],
        icrc: u32,
    ) -> Option<u16> {
        if transport.len() < BTH_LEN || transport.len() > usize::from(u16::MAX) - 32 {
            return None;
        }
        let flow = match self.flow {
            Some((known, port, flow)) if known == addresses && port == udp_src => flow,
            _ => {
                let flow = FlowCrc::new(addresses, udp_src);
                self.flow = Some((addresses, udp_src, flow));
                flow
            }
        };
        let hint = if flow.ipv4 { hint } else { 0 };
        let difference = flow.icrc(hint, transport) ^ icrc;
        if difference == 0 {
            return Some(hint);
        }
        if !flow.ipv4 {
            return None;
        }
        let change = self.solver(transport.len()).apply(difference);
        // What is left after the division is a change of the identification only if it fits its 16
        // bits.
        u16::try_from(change).ok().map(|change| hint ^ change.swap_bytes())
    }

    fn solver(&mut self, transport_len: usize) -> &Times<8> {
        let known = self.solvers.iter().position(|solver| solver.transport_len == transport_len);
        let index = known.unwrap_or_else(|| {
            let index = self.next_solver;
            self.next_solver = (index + 1) % Checker::LENGTHS;
            let factor = Times::new(x8_pow_neg(IDENTIFICATION_TO_BTH + transport_len as u32));
            self.solvers[index] = Solver { transport_len, factor };
            index
        });
        &self.solvers[index].factor
    }
}

impl Default for Checker {
    fn default() -> Checker {
        Checker::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, bit by bit, over a packet laid out and masked as the specification says.
    fn by_definition(
        addresses: Addresses,
        udp_src: u16,
        identification: u16,
        transport: &[u8],
    ) -> u32 {
        let mut bytes = vec![0xff; 8];
        let udp_len = (transport.len() + 12) as u16;
        match addresses {
            Addresses::V4(source, destination) => {
                bytes.extend([0x45, 0xff]);
                bytes.extend((udp_len + 20).to_be_bytes());
                bytes.extend(identification.to_be_bytes());
                bytes.extend([0x40, 0x00, 0xff, 17, 0xff, 0xff]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
            }
            Addresses::V6(source, destination) => {
                bytes.extend([0x6f, 0xff, 0xff, 0xff]);
                bytes.extend(udp_len.to_be_bytes());
                bytes.extend([17, 0xff]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
            }
        }
        bytes.extend(udp_src.to_be_bytes());
        bytes.extend(4791u16.to_be_bytes());
        bytes.extend(udp_len.to_be_bytes());
        bytes.extend([0xff, 0xff]);
        let bth = bytes.len();
        bytes.extend(transport);
        bytes[bth + 4] = 0xff;
        let mut register = u32::MAX;
        for byte in bytes {
            register ^= u32::from(byte);
            for _ in 0..8 {
                register = register >> 1 ^ if register & 1 != 0 { 0xedb8_8320 } else { 0 };
            }
        }
        !register
    }

    /// Deterministic bytes (xorshift).
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
        fn transport(&mut self) -> Vec<u8> {
            let len = 12 + self.next() as usize % 300;
            (0..len).map(|_| (self.next() >> 32) as u8).collect()
        }
        fn addresses(&mut self) -> Addresses {
            let (a, b) = (self.next(), self.next());
            if a & 1 == 0 {
                Addresses::V4(Ipv4Addr::from_bits(a as u32), Ipv4Addr::from_bits(b as u32))
            } else {
                let wide = |x: u64| Ipv6Addr::from_bits(u128::from(x) << 64 | u128::from(!x));
                Addresses::V6(wide(a), wide(b))
            }
        }
    }

    fn ipv4() -> Addresses {
        Addresses::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(192, 168, 7, 9))
    }

    #[test]
    fn seed_is_the_one_linux_documents() {
        // rxe_icrc.c starts from the register after 8 bytes of ones.
        assert_eq!(!crc32fast::hash(&[0xff; 8]), 0xdebb_20e3);
    }

    /// A congestion notification that a ConnectX-4 Lx sent, and a UC SEND on one host; both
    /// captures are known from the test data of the Scapy project.
    #[test]
    fn equals_what_hardware_sent() {
        let mut cnp = [0; 28];
        cnp[..8].copy_from_slice(&[0x81, 0, 0xff, 0xff, 0x40, 0, 0x01, 0x18]);
        let nic = Addresses::V4(Ipv4Addr::new(10, 0, 17, 1), Ipv4Addr::new(10, 0, 18, 1));
        assert_eq!(compute(nic, 0, 0x718c, &cnp).to_le_bytes(), [0x82, 0xfd, 0x00, 0x2a]);
        assert_eq!(
            Checker::new().check(nic, 0, 0, &cnp, 0x2a00_fd82),
            Some(0x718c),
            "the identification is found without being told"
        );

        let send = [
            0x24, 0x60, 0xff, 0xff, 0, 0, 0, 211, 0, 0xcf, 0x17, 0x10, // BTH
            0x46, 0x30, 0x81, 0x8b, 0xe2, 0x89, 0x35, 0xd9, 0x0e, 0x9a, // payload
            0x95, 0x50, 0x54, 0x01, 0xbe, 0x88, 0x5e, 0x50, 0, 0,
        ];
        let host = Ipv4Addr::new(192, 168, 0, 7);
        let icrc = compute(Addresses::V4(host, host), 49_152, 1144, &send);
        assert_eq!(icrc.to_le_bytes(), [0x78, 0xf3, 0x53, 0xf3]);
    }

    #[test]
    fn equals_the_definition() {
        let mut random = Random(0x1234_5678_9abc_def1);
        for _ in 0..2000 {
            let (addresses, port, id) =
                (random.addresses(), random.next() as u16, random.next() as u16);
            let transport = random.transport();
            assert_eq!(
                compute(addresses, port, id, &transport),
                by_definition(addresses, port, id, &transport)
            );
        }
    }

    #[test]
    fn every_identification_is_found() {
        let mut random = Random(99);
        let mut checker = Checker::new();
        for _ in 0..3 {
            let transport = random.transport();
            let crc = FlowCrc::new(ipv4(), 49_152).at_length(transport.len());
            for id in 0..=u16::MAX {
                let icrc = crc.icrc(id, &transport);
                let hint = random.next() as u16;
                assert_eq!(checker.check(ipv4(), 49_152, hint, &transport, icrc), Some(id));
            }
        }
    }

    #[test]
    fn corruption_passes_once_in_65536_on_ipv4_and_never_on_ipv6() {
        let mut random = Random(4711);
        let mut checker = Checker::new();
        let ipv6 = Addresses::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
        const TRIALS: u32 = 1 << 20;
        let (mut passed4, mut passed6) = (0, 0);
        let mut transport = random.transport();
        let (good4, good6) =
            (compute(ipv4(), 5000, 7, &transport), compute(ipv6, 5000, 7, &transport));
        for _ in 0..TRIALS {
            let at = random.next() as usize % (transport.len() - 8);
            let kept: [u8; 8] = transport[at..at + 8].try_into().unwrap();
            let noise = random.next().to_le_bytes();
            transport[at..at + 8].iter_mut().zip(noise).for_each(|(byte, n)| *byte ^= n);
            transport[4] = 0;
            passed4 += u32::from(checker.check(ipv4(), 5000, 7, &transport, good4).is_some());
            passed6 += u32::from(checker.check(ipv6, 5000, 7, &transport, good6).is_some());
            transport[at..at + 8].copy_from_slice(&kept);
        }
        // 16 expected; the bounds are some four standard deviations away.
        assert!((1..=34).contains(&passed4), "{passed4} of {TRIALS} corrupted packets passed");
        assert_eq!(passed6, 0);
    }

    #[test]
    fn only_what_may_change_on_the_way_is_not_covered() {
        let transport = Random(3).transport();
        let ipv6 = Addresses::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
        for addresses in [ipv4(), ipv6] {
            let icrc = compute(addresses, 1, 0, &transport);
            for at in 0..transport.len() {
                let mut changed = transport.clone();
                changed[at] ^= 0x40;
                assert_eq!(check(addresses, 1, 0, &changed, icrc), at == 4, "byte {at}");
            }
            assert!(!check(addresses, 2, 0, &transport, icrc), "other port");
            assert!(!check(addresses, 1, 0, &transport, icrc ^ 1), "other ICRC");
            assert!(!check(addresses, 1, 0, &transport[..transport.len() - 1], icrc), "shorter");
        }
    }

    #[test]
    fn impossible_lengths_are_refused() {
        for len in [0, 1, 11, 65_504, 70_000] {
            let transport = vec![0; len];
            for addresses in [ipv4(), Addresses::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST)] {
                let icrc = compute(addresses, 1, 0, &transport);
                assert!(!check(addresses, 1, 0, &transport, icrc), "length {len}");
            }
        }
    }

    #[test]
    fn a_checker_forgets_lengths_and_flows_without_harm() {
        let mut random = Random(8);
        let mut checker = Checker::new();
        let packets: Vec<_> = (0..40)
            .map(|n| (if n % 4 < 2 { ipv4() } else { random.addresses() }, random.transport()))
            .collect();
        for _ in 0..3 {
            for (addresses, transport) in &packets {
                let id = random.next() as u16;
                // The port alone tells some flows apart.
                let port = id % 3;
                let icrc = compute(*addresses, port, id, transport);
                let found = checker.check(*addresses, port, 0, transport, icrc);
                let expected = if matches!(addresses, Addresses::V4(..)) { id } else { 0 };
                assert_eq!(found, Some(expected));
            }
        }
    }
}
