//! What stands in a ring: the addresses and the few fields of the IP header that a transport asks
//! for, then the packet from the BTH on, without its ICRC. What is as in the record before, as it
//! is of most, is left out.

use std::net::{IpAddr, Ipv6Addr};
use wire::{Headers, MAX_HEADERS_LEN};

/// Tags of records: one with its ends, and one whose ends are those of the latest that had any.
pub(super) const WITH_ENDS: u16 = 0;
pub(super) const SAME_ENDS: u16 = 1;
/// Bytes of the ends before a packet.
pub(crate) const PREFIX_LEN: usize = 40;
/// Bytes of all packets but the last of a message. To make, pass and take a packet costs as much as
/// to copy some KiB; and several fit into the ring at a time.
pub(crate) const RING_MTU: u32 = 32 << 10;
/// Longest record: a packet with all its headers.
pub(super) const MAX_RECORD_LEN: usize = RING_MTU as usize + HEAD_LEN;
/// Bytes that hold all that stands before a payload, and padding.
pub(super) const HEAD_LEN: usize = 256;
/// From this length on a record's payload is copied straight from memory into the ring, and from
/// there to its place. Below, to copy it twice takes less than to find out where it is.
pub(super) const LONG: usize = 1 << 10;
const _: () = assert!(LONG > HEAD_LEN && HEAD_LEN >= PREFIX_LEN + MAX_HEADERS_LEN + 3);

/// Source and destination of a connection's packets, and what else their IP header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ends {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) traffic_class: u8,
    pub(crate) hop_limit: u8,
}

impl Ends {
    pub(super) fn emit(&self, out: &mut [u8; PREFIX_LEN]) {
        out[0..16].copy_from_slice(&octets(self.src));
        out[16..32].copy_from_slice(&octets(self.dst));
        out[32..].copy_from_slice(&[self.traffic_class, self.hop_limit, 0, 0, 0, 0, 0, 0]);
    }

    fn parse(prefix: &[u8; PREFIX_LEN]) -> Ends {
        let (addresses, rest) = prefix.as_chunks();
        let ip = |index: usize| Ipv6Addr::from(addresses[index]).to_canonical();
        Ends { src: ip(0), dst: ip(1), traffic_class: rest[0], hop_limit: rest[1] }
    }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Begins a record in `out`, which is as long as the record with its ends, for which it leaves
/// room: where its payload goes, which is `payload_len` long. Padding is zero.
pub(crate) fn begin<'a>(headers: &Headers, payload_len: usize, out: &'a mut [u8]) -> &'a mut [u8] {
    let Some((_, packet)) = out.split_first_chunk_mut::<PREFIX_LEN>() else { return &mut [] };
    let at = headers.emit(packet);
    let (payload, padding) = packet[at..].split_at_mut(payload_len);
    padding.fill(0);
    payload
}

/// All that stands before a payload of a long record, at its beginning.
pub(super) fn head(ends: &Ends, headers: &Headers) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    begin(headers, 0, &mut head[..PREFIX_LEN + headers.len()]);
    if let Some(prefix) = head.first_chunk_mut() {
        ends.emit(prefix);
    }
    head
}

/// Where in a record with this tag its packet begins; `None` for no such tag.
pub(super) fn packet_at(tag: u16) -> Option<usize> {
    match tag {
        WITH_ENDS => Some(PREFIX_LEN),
        SAME_ENDS => Some(0),
        _ => None,
    }
}

/// Reads a record with this tag: its headers, its payload, and where its packet begins; `None`
/// where it is none. Its ends are then in `last`, where those of the record before it were.
// As Headers::parse: written once, where the caller wants them.
#[inline(always)]
pub(super) fn parse<'a>(
    tag: u16,
    record: &'a [u8],
    last: &mut Option<Ends>,
) -> Option<(Headers, &'a [u8], usize)> {
    let at = packet_at(tag)?;
    let mut packet = record;
    if at > 0 {
        let (prefix, rest) = record.split_first_chunk()?;
        (*last, packet) = (Some(Ends::parse(prefix)), rest);
    }
    last.as_ref()?;
    let Ok((headers, payload)) = Headers::parse(packet) else { return None };
    Some((headers, payload, at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Bth, Opcode, Operation, Position, Psn, Service};

    #[test]
    fn a_packet_comes_out_as_it_went_in() {
        let headers = Headers::new(Bth {
            opcode: Opcode {
                service: Service::Rc,
                operation: Operation::Send,
                position: Position::Only,
                imm: false,
                invalidate: false,
            },
            solicited: true,
            migrated: true,
            pad: 3,
            pkey: 0xffff,
            fecn: false,
            becn: false,
            dest_qp: 0x1234,
            ack_req: true,
            psn: Psn::new(77),
        });
        let ends = |src: &str, dst: &str| Ends {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            traffic_class: 0x68,
            hop_limit: 64,
        };
        let mut last = None;
        let mut parse = |tag, record: &[u8]| {
            let (headers, payload, at) = parse(tag, record, &mut last)?;
            Some((last?, headers, payload.to_vec(), at))
        };
        let mut record = vec![0xee; PREFIX_LEN + headers.len() + 8];
        begin(&headers, 5, &mut record).copy_from_slice(b"bytes");
        assert_eq!(parse(SAME_ENDS, &record[PREFIX_LEN..]), None, "as which?");
        for ends in [ends("10.0.0.1", "10.0.0.2"), ends("::", "::"), ends("fe80::1", "::1")] {
            ends.emit(record.first_chunk_mut().unwrap());
            let parts = |at| Some((ends, headers, b"bytes".to_vec(), at));
            assert_eq!(parse(WITH_ENDS, &record), parts(PREFIX_LEN));
            assert_eq!(parse(SAME_ENDS, &record[PREFIX_LEN..]), parts(0));
            assert_eq!(parse(SAME_ENDS + 1, &record), None);
            for len in 0..record.len() - 8 {
                assert_eq!(parse(WITH_ENDS, &record[..len]), None, "{len} bytes");
            }
        }
    }
}
