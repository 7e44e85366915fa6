//! Targets of the crate `wire`.

use ::wire::cm::{Dreq, Ids, Kind, Mad, Mra, Rej, Rep, Req, SidrRep, SidrReq};
use ::wire::ethernet;
use ::wire::frame::Frame;
use ::wire::grh::Grh;
use ::wire::icrc::{self, Addresses, Checker, FlowCrc};
use ::wire::mad::MAD_LEN;
use ::wire::{BTH_LEN, GRH_LEN, Headers, MAX_HEADERS_LEN, Opcode};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Parses a packet; what parses must survive emission unchanged.
pub fn headers_parse(data: &[u8]) {
    let Ok((headers, payload)) = Headers::parse(data) else { return };
    let mut out = [0; MAX_HEADERS_LEN];
    let len = headers.emit(&mut out);
    assert_eq!(len, headers.len());
    assert_eq!(len + payload.len() + usize::from(headers.bth.pad), data.len());
    assert_eq!(payload, &data[len..len + payload.len()]);
    let again = [&out[..len], &data[len..]].concat();
    assert_eq!(Headers::parse(&again), Ok((headers, payload)));
}

/// One valid packet of every opcode.
pub fn header_seeds() -> Vec<Vec<u8>> {
    let opcodes = (0..=u8::MAX).filter_map(Opcode::from_byte);
    opcodes
        .map(|opcode| {
            let mut packet = vec![0; opcode.headers_len() + 8];
            packet[0] = opcode.to_byte();
            packet
        })
        .collect()
}

/// Bytes before the transport bytes: IP version, hint, identification, UDP source port, ICRC.
const ICRC_PARAMETERS: usize = 11;

/// Checks ICRCs: what the sender computes always fits, and what fits is what a sender computes.
pub fn icrc_check(data: &[u8]) {
    let Some((parameters, transport)) = data.split_at_checked(ICRC_PARAMETERS) else { return };
    let short = |at: usize| u16::from_le_bytes([parameters[at], parameters[at + 1]]);
    let (hint, identification, port) = (short(1), short(3), short(5));
    let found = u32::from(short(7)) << 16 | u32::from(short(9));
    let ipv4 = parameters[0] & 1 == 0;
    let addresses = if ipv4 {
        Addresses::V4(Ipv4Addr::new(10, 0, 0, parameters[0]), Ipv4Addr::LOCALHOST)
    } else {
        Addresses::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED)
    };
    let mut checker = Checker::new();
    let flow = FlowCrc::new(addresses, port);
    if let Some(fit) = checker.check(addresses, port, hint, transport, found) {
        assert_eq!(flow.icrc(fit, transport), found);
    }
    let right = icrc::compute(addresses, port, identification, transport);
    assert_eq!(right, flow.icrc(identification, transport));
    let fit = checker.check(addresses, port, hint, transport, right);
    if transport.len() < BTH_LEN {
        assert_eq!(fit, None);
    } else if transport.len() < 60_000 {
        assert_eq!(fit, Some(if ipv4 { identification } else { 0 }));
    }
}

/// Packets of several lengths over IPv4 and IPv6.
pub fn icrc_seeds() -> Vec<Vec<u8>> {
    let lengths = [0, BTH_LEN - 1, BTH_LEN, 40, 300];
    let sized = |len: usize| [vec![0; ICRC_PARAMETERS + len], vec![1; ICRC_PARAMETERS + len]];
    lengths.into_iter().flat_map(sized).collect()
}

/// Parses the network header of a receive buffer; what parses must survive emission unchanged.
pub fn grh_parse(data: &[u8]) {
    let Some((bytes, _)) = data.split_first_chunk::<GRH_LEN>() else { return };
    let Ok(grh) = Grh::parse(bytes) else { return };
    assert_eq!(Grh::parse(&grh.emit()), Ok(grh));
}

/// An IPv4 and an IPv6 header.
pub fn grh_seeds() -> Vec<Vec<u8>> {
    let grh = |addresses| Grh {
        addresses,
        traffic_class: 2,
        flow_label: 0,
        hop_limit: 64,
        udp_len: 300,
        identification: 0,
    };
    let v4 = Addresses::V4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
    let v6 = Addresses::V6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    [v4, v6].map(|addresses| grh(addresses).emit().to_vec()).to_vec()
}

/// Ethernet frames as flow steering reads them: what is found lies inside the frame, and cutting it
/// finds no more.
pub fn frame_parse(data: &[u8]) {
    let Some(frame) = Frame::parse(data) else {
        return assert!(data.len() < ethernet::HEADER_LEN);
    };
    assert_eq!(frame.dst[..], data[..6]);
    assert!(frame.ports.is_none() || frame.ip.is_some());
    let cut = Frame::parse(&data[..data.len() - 1]);
    let found = |frame: &Frame| u8::from(frame.ip.is_some()) + u8::from(frame.ports.is_some());
    assert!(cut.is_none_or(|cut| found(&cut) <= found(&frame)));
}

/// UDP over IPv4, and TCP over IPv6 behind a VLAN tag.
pub fn frame_seeds() -> Vec<Vec<u8>> {
    let mut udp = vec![1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    udp.extend([0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    udp.extend([4, 0xd2, 0x16, 0x2e, 0, 8, 0, 0]);
    let mut tcp = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x81, 0, 0xac, 0x0c, 0x86, 0xdd];
    tcp.extend([0x60, 0, 0, 0, 0, 20, 6, 64]);
    tcp.extend([0x20; 32]);
    tcp.extend([4, 0xd2, 0x16, 0x2e, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0]);
    vec![udp, tcp]
}

/// Parses a management datagram as every message; what parses must survive emission unchanged.
pub fn mad_parse(data: &[u8]) {
    let Some((bytes, _)) = data.split_first_chunk::<MAD_LEN>() else { return };
    let mad = Mad::from_bytes(bytes);
    assert_eq!(mad.bytes(), bytes);
    let tid = mad.tid();
    let mut read = Vec::new();
    macro_rules! message {
        ($($name:ident)*) => {$(
            if let Some(message) = $name::parse(&mad) {
                read.push(Kind::$name);
                let again = message.emit(tid);
                assert_eq!((again.kind(), again.tid()), (Some(Kind::$name), tid));
                assert_eq!($name::parse(&again), Some(message));
            }
        )*};
    }
    message!(Req Rep Rej Mra Dreq SidrReq SidrRep);
    match mad.kind() {
        None | Some(Kind::Rtu | Kind::Drep) => assert!(read.is_empty()),
        // It may ask for a transport that does not exist.
        Some(Kind::Req) => assert!(read.is_empty() || read == [Kind::Req]),
        Some(kind) => assert_eq!(read, [kind]),
    }
}

/// One datagram of every kind.
pub fn mad_seeds() -> Vec<Vec<u8>> {
    let ids = Ids { local: 0x40_0001, remote: 0x80_0002 };
    Kind::ALL.map(|kind| Mad::with_ids(kind, 7, ids).bytes().to_vec()).to_vec()
}
