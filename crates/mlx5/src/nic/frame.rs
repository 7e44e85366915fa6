//! Frames on their way out and in: checksums (RFC 1071) in IP, TCP and UDP headers, and large sends
//! cut into segments.
//!
//! Whatever a guest sends is read as far as its headers go; a header that is cut short is none, and
//! is left as it is.

use std::ops::Range;
use wire::ethernet::{
    self, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, VLAN_AT,
};
use wire::field::{Field, be16, put};
use wire::internet::{fold, pseudo_header, sum};
use wire::ip::{PROTOCOL_TCP, PROTOCOL_UDP};
use wire::{ipv4, ipv6, tcp, udp};

/// Where the headers of a frame lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    ip: usize,
    /// End of the IP header.
    body: usize,
    v4: bool,
    /// Protocol and place of a TCP or UDP header that is whole and not in a later fragment.
    transport: Option<(u8, usize)>,
    /// End of the IP packet; padding may follow.
    end: usize,
}

impl Layout {
    /// The layout of a frame with an IP packet.
    pub(super) fn of(frame: &[u8]) -> Option<Layout> {
        let (kind, ip) = network(frame)?;
        let packet = frame.get(ip..)?;
        let (v4, header, total, protocol, whole) = if kind == ETHERTYPE_IPV4 {
            let (header, rest) = ipv4::Repr::parse(packet)?;
            let len = packet.len() - rest.len();
            (true, len, usize::from(header.total_len), header.protocol, !header.is_fragment())
        } else {
            let (header, _) = ipv6::Repr::parse(packet)?;
            let total = ipv6::HEADER_LEN + usize::from(header.payload_len);
            (false, ipv6::HEADER_LEN, total, header.next_header, true)
        };
        if total < header || packet.len() < total {
            return None;
        }
        let at = ip + header;
        let least = header_len_of(protocol).unwrap_or(usize::MAX);
        let transport = (whole && total - header >= least).then_some((protocol, at));
        Some(Layout { ip, body: at, v4, transport, end: ip + total })
    }

    /// Whether the IP header's checksum is right; version 6 has none.
    pub(super) fn network_is_right(&self, frame: &[u8]) -> bool {
        !self.v4 || ipv4::checksum_is_right(&frame[self.header()])
    }

    /// Whether there is a TCP or UDP checksum and it is right.
    pub(super) fn transport_is_right(&self, frame: &[u8]) -> bool {
        self.transport.is_some_and(|(protocol, at)| {
            let absent = self.v4
                && protocol == PROTOCOL_UDP
                && be16(&frame[at..], udp::field::CHECKSUM) == 0;
            absent || fold(self.transport_sum(frame, protocol, at)) == 0xffff
        })
    }

    /// TCP or UDP, if it is one.
    pub(super) fn protocol(&self) -> Option<u8> {
        self.transport.map(|(protocol, _)| protocol)
    }

    /// Whether it is IP version 4.
    pub(super) fn is_v4(&self) -> bool {
        self.v4
    }

    fn header(&self) -> Range<usize> {
        self.ip..self.body
    }

    /// The sum over the transport's part of the packet, with the pseudo header.
    fn transport_sum(&self, frame: &[u8], protocol: u8, at: usize) -> u64 {
        let addresses = if self.v4 { ipv4::field::ADDRESSES } else { ipv6::field::ADDRESSES };
        let addresses = &frame[self.header()][addresses];
        pseudo_header(addresses, protocol, self.end - at) + sum(&frame[at..self.end])
    }

    /// Fills the IP header's checksum in.
    fn fill_network(&self, frame: &mut [u8]) {
        if self.v4 {
            ipv4::fill_checksum(&mut frame[self.header()]);
        }
    }

    /// Fills the checksum of TCP or UDP in.
    fn fill_transport(&self, frame: &mut [u8]) {
        let Some((protocol, at)) = self.transport else { return };
        let tcp = protocol == PROTOCOL_TCP;
        let place: Field = if tcp { tcp::field::CHECKSUM } else { udp::field::CHECKSUM };
        put(&mut frame[at..], place.clone(), &[0; 2]);
        let sum = self.transport_sum(frame, protocol, at);
        let value = if tcp { !fold(sum) } else { udp::checksum_of_sum(sum) };
        put(&mut frame[at..], place, &value.to_be_bytes());
    }
}

/// Least length of a header of this protocol; `None` for neither TCP nor UDP.
fn header_len_of(protocol: u8) -> Option<usize> {
    match protocol {
        PROTOCOL_TCP => Some(tcp::HEADER_LEN),
        PROTOCOL_UDP => Some(udp::HEADER_LEN),
        _ => None,
    }
}

/// Sum of everything behind the Ethernet header, as a completion carries it.
pub(super) fn sum_of_body(frame: &[u8]) -> u16 {
    fold(sum(frame.get(ethernet::HEADER_LEN..).unwrap_or_default()))
}

/// Which checksums a send request wants.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Checksums {
    pub(super) network: bool,
    pub(super) transport: bool,
}

impl Checksums {
    /// Fills them in, where the frame has the headers.
    pub(super) fn fill(self, frame: &mut [u8]) {
        let Some(layout) = Layout::of(frame) else { return };
        if self.network {
            layout.fill_network(frame);
        }
        if self.transport {
            layout.fill_transport(frame);
        }
    }
}

/// Cuts a large send into frames of up to `mss` bytes behind `headers`, each handed to `each`.
/// `None` if the headers are not those of TCP or UDP over IP.
pub(super) fn segments(
    headers: &[u8],
    payload: &[u8],
    mss: usize,
    mut each: impl FnMut(Vec<u8>),
) -> Option<()> {
    // Lengths in the headers are those of the whole, which may be beyond what they can say.
    let mut template = headers.to_vec();
    let (kind, ip) = network(&template)?;
    let v4 = kind == ETHERTYPE_IPV4;
    let packet = template.get(ip..)?;
    let (len, protocol) = if v4 {
        (ipv4::header_len(packet), *packet.get(ipv4::field::PROTOCOL)?)
    } else {
        (ipv6::HEADER_LEN, *packet.get(ipv6::field::NEXT_HEADER)?)
    };
    let at = ip + len;
    let least = header_len_of(protocol)?;
    let transport = template.get(at..).filter(|rest| rest.len() >= least)?;
    let stream = tcp::Repr::parse(transport).filter(|_| protocol == PROTOCOL_TCP);
    let identification = be16(packet, ipv4::field::IDENTIFICATION);
    let count = payload.len().div_ceil(mss.max(1));
    for (index, piece) in payload.chunks(mss.max(1)).enumerate() {
        let total = (template.len() - ip + piece.len()) as u16;
        let packet = &mut template[ip..];
        if v4 {
            let identification = identification.wrapping_add(index as u16);
            put(packet, ipv4::field::TOTAL_LENGTH, &total.to_be_bytes());
            put(packet, ipv4::field::IDENTIFICATION, &identification.to_be_bytes());
        } else {
            ipv6::set_payload_len(packet, total.wrapping_sub(ipv6::HEADER_LEN as u16));
        }
        let transport = &mut packet[len..];
        if let Some(first) = stream {
            let sequence = first.sequence.wrapping_add((index * mss) as u32);
            let not_last = if index + 1 < count { tcp::FIN | tcp::PSH } else { 0 };
            let not_first = if index > 0 { tcp::CWR } else { 0 };
            let flags = first.flags & !not_last & !not_first;
            tcp::Repr { sequence, flags, ..first }.emit_over(transport);
        } else {
            udp::set_len(transport, (transport.len() + piece.len()) as u16);
        }
        let mut frame = [&template[..], piece].concat();
        Checksums { network: true, transport: true }.fill(&mut frame);
        each(frame);
    }
    Some(())
}

/// Type of the IP header behind VLAN tags, and where that begins.
fn network(frame: &[u8]) -> Option<(u16, usize)> {
    let ip = |(kind, _): &(u16, usize)| [ETHERTYPE_IPV4, ETHERTYPE_IPV6].contains(kind);
    ethernet::behind_tags(frame).filter(ip)
}

/// Puts a VLAN tag in.
pub(super) fn insert_tag(frame: &mut Vec<u8>, service: bool, tag: u16) {
    if frame.len() >= VLAN_AT {
        let kind = if service { ETHERTYPE_SERVICE_VLAN } else { ETHERTYPE_VLAN };
        frame.splice(VLAN_AT..VLAN_AT, ethernet::tag_bytes(kind, tag));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::ethernet::HEADER_LEN;
    use wire::field::be32;
    use wire::frame::Frame;
    use wire::ip::Ip;

    fn tcp(v4: bool, payload: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut headers = vec![2; 12];
        if v4 {
            headers.extend(ETHERTYPE_IPV4.to_be_bytes());
            headers.extend([0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, PROTOCOL_TCP, 0, 0]);
            headers.extend([10, 0, 0, 1, 10, 0, 0, 2]);
        } else {
            headers.extend(ETHERTYPE_IPV6.to_be_bytes());
            headers.extend([0x60, 0, 0, 0, 0, 0, PROTOCOL_TCP, 64]);
            headers.extend([0xfd; 16]);
            headers.extend([0xfc; 16]);
        }
        headers.extend([0x12, 0x34, 0, 80, 0xff, 0xff, 0xff, 0xf0, 0, 0, 0, 1]);
        headers.extend([0x50, 0x99, 1, 0, 0, 0, 0, 0]);
        (headers, payload.to_vec())
    }

    #[test]
    fn a_large_send_is_cut_into_frames_that_are_right() {
        for v4 in [true, false] {
            let (headers, payload) = tcp(v4, &[0x5a; 2501]);
            let mut frames = Vec::new();
            segments(&headers, &payload, 1000, |frame| frames.push(frame)).unwrap();
            assert_eq!(frames.len(), 3);
            let mut sequence = 0xffff_fff0u32;
            for (index, frame) in frames.iter().enumerate() {
                let layout = Layout::of(frame).unwrap();
                assert!(layout.network_is_right(frame) && layout.transport_is_right(frame));
                let at = layout.transport.unwrap().1;
                assert_eq!(be32(&frame[at..], tcp::field::SEQUENCE), sequence);
                let expected = [0x90, 0x10, 0x19][index];
                assert_eq!(frame[at + tcp::field::FLAGS], expected, "flags of segment {index}");
                sequence = sequence.wrapping_add(1000);
                let parsed = Frame::parse(frame).unwrap();
                assert_eq!(matches!(parsed.ip, Some(Ip::V4(_))), v4);
            }
            assert_eq!(frames[2].len(), headers.len() + 501);
        }
    }

    #[test]
    fn what_is_wrong_is_seen() {
        let (headers, payload) = tcp(true, b"some payload");
        let mut frames = Vec::new();
        segments(&headers, &payload, 1000, |frame| frames.push(frame)).unwrap();
        let layout = Layout::of(&frames[0]).unwrap();
        let mut wrong = frames[0].clone();
        *wrong.last_mut().unwrap() ^= 1;
        assert!(layout.network_is_right(&wrong) && !layout.transport_is_right(&wrong));
        wrong[HEADER_LEN + 8] ^= 1;
        assert!(!layout.network_is_right(&wrong));
    }

    #[test]
    fn headers_that_are_cut_short_or_lie_harm_nobody() {
        let (headers, payload) = tcp(true, &[1; 40]);
        for len in 0..headers.len() {
            assert_eq!(segments(&headers[..len], &payload, 16, |_| panic!("a frame")), None);
            assert_eq!(Layout::of(&headers[..len]), None);
        }
        for at in 0..headers.len() {
            for value in [0, 0x4f, 0x60, 0xff] {
                let mut frame = headers.clone();
                frame[at] = value;
                let _ = segments(&frame, &payload, 0, |_| ());
                frame.extend(&payload);
                Checksums { network: true, transport: true }.fill(&mut frame);
                let right = |layout: Layout| {
                    layout.network_is_right(&frame) && layout.transport_is_right(&frame)
                };
                let _ = Layout::of(&frame).map(right);
            }
        }
    }

    #[test]
    fn a_tag_goes_behind_the_addresses() {
        let mut frame = vec![1; 20];
        insert_tag(&mut frame, false, 0x2005);
        assert_eq!(frame[10..18], [1, 1, 0x81, 0, 0x20, 5, 1, 1]);
    }
}
