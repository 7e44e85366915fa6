//! Frames on their way out and in: checksums (RFC 1071) in IP, TCP and UDP headers, and large sends cut into segments.
//!
//! Whatever a guest sends is read as far as its headers go; a header that is cut short is none, and is left as it is.

use crate::bits::{be16, be32, put};
use std::ops::Range;
use wire::frame::{
    ETHERNET_LEN, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, PROTOCOL_TCP, PROTOCOL_UDP,
    VLAN_AT, VLAN_LEN,
};
use wire::internet::{checksum, fold, sum};

/// Least bytes of a frame without its frame check sequence (IEEE 802.3).
pub(super) const LEAST_LEN: usize = 60;
const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;
const IPV6_LEN: usize = 40;
const TCP_CHECKSUM: usize = 16;
const UDP_CHECKSUM: usize = 6;
const TCP_FIN_AND_PSH: u8 = 0x09;
const TCP_CWR: u8 = 0x80;

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
    /// Of a frame with an IP packet.
    pub(super) fn of(frame: &[u8]) -> Option<Layout> {
        let (kind, ip) = network(frame)?;
        let version = frame.get(ip)? >> 4;
        let (v4, header, total, protocol, whole) = match (kind, version) {
            (ETHERTYPE_IPV4, 4) => {
                let header = usize::from(frame[ip] & 0xf) * 4;
                let whole = be16(frame, ip + 6) & 0x3fff == 0;
                (true, header, usize::from(be16(frame, ip + 2)), frame.get(ip + 9)?, whole)
            }
            (ETHERTYPE_IPV6, 6) => {
                let total = IPV6_LEN + usize::from(be16(frame, ip + 4));
                (false, IPV6_LEN, total, frame.get(ip + 6)?, true)
            }
            _ => return None,
        };
        if header < 20 || total < header || frame.len() < ip + total {
            return None;
        }
        let at = ip + header;
        let least = match *protocol {
            PROTOCOL_TCP => 20,
            PROTOCOL_UDP => 8,
            _ => usize::MAX,
        };
        let transport = (whole && total - header >= least).then_some((*protocol, at));
        Some(Layout { ip, body: at, v4, transport, end: ip + total })
    }

    /// Whether the IP header's checksum is right; version 6 has none.
    pub(super) fn network_is_right(&self, frame: &[u8]) -> bool {
        !self.v4 || fold(sum(&frame[self.header()])) == 0xffff
    }

    /// Whether there is a TCP or UDP checksum and it is right.
    pub(super) fn transport_is_right(&self, frame: &[u8]) -> bool {
        self.transport.is_some_and(|(protocol, at)| {
            let absent = self.v4 && protocol == PROTOCOL_UDP && be16(frame, at + UDP_CHECKSUM) == 0;
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

    /// With the pseudo header.
    fn transport_sum(&self, frame: &[u8], protocol: u8, at: usize) -> u64 {
        let addresses =
            if self.v4 { self.ip + 12..self.ip + 20 } else { self.ip + 8..self.ip + 40 };
        let len = (self.end - at) as u64;
        sum(&frame[addresses]) + u64::from(protocol) + len + sum(&frame[at..self.end])
    }

    /// Fills the IP header's checksum in.
    fn fill_network(&self, frame: &mut [u8]) {
        if self.v4 {
            put(frame, self.ip + 10, &[0; 2]);
            let value = checksum(&frame[self.header()]);
            put(frame, self.ip + 10, &value.to_be_bytes());
        }
    }

    /// Fills the checksum of TCP or UDP in.
    fn fill_transport(&self, frame: &mut [u8]) {
        let Some((protocol, at)) = self.transport else { return };
        let place = at + if protocol == PROTOCOL_TCP { TCP_CHECKSUM } else { UDP_CHECKSUM };
        put(frame, place, &[0; 2]);
        let value = !fold(self.transport_sum(frame, protocol, at));
        // In UDP 0 would say that there is none.
        let value = if protocol == PROTOCOL_UDP && value == 0 { 0xffff } else { value };
        put(frame, place, &value.to_be_bytes());
    }
}

/// Sum of everything behind the Ethernet header, as a completion carries it.
pub(super) fn sum_of_body(frame: &[u8]) -> u16 {
    fold(sum(frame.get(ETHERNET_LEN..).unwrap_or_default()))
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

/// Cuts a large send into frames of up to `mss` bytes behind `headers`, each handed to `each`. `None` if the headers are not
/// those of TCP or UDP over IP.
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
    let transport = if v4 { ip + usize::from(template.get(ip)? & 0xf) * 4 } else { ip + IPV6_LEN };
    let protocol = *template.get(if v4 { ip + 9 } else { ip + 6 })?;
    let least = if protocol == PROTOCOL_TCP { 20 } else { 8 };
    if ![PROTOCOL_TCP, PROTOCOL_UDP].contains(&protocol) || template.len() < transport + least {
        return None;
    }
    let (sequence, identification) = (be32(&template, transport + 4), be16(&template, ip + 4));
    let flags = template.get(transport + 13).copied().unwrap_or(0);
    let count = payload.len().div_ceil(mss.max(1));
    for (index, piece) in payload.chunks(mss.max(1)).enumerate() {
        let packet = (template.len() - ip + piece.len()) as u16;
        if v4 {
            put(&mut template, ip + 2, &packet.to_be_bytes());
            put(&mut template, ip + 4, &identification.wrapping_add(index as u16).to_be_bytes());
        } else {
            put(&mut template, ip + 4, &packet.wrapping_sub(IPV6_LEN as u16).to_be_bytes());
        }
        if protocol == PROTOCOL_TCP {
            let sequence = sequence.wrapping_add((index * mss) as u32);
            put(&mut template, transport + 4, &sequence.to_be_bytes());
            let not_last = if index + 1 < count { TCP_FIN_AND_PSH } else { 0 };
            let not_first = if index > 0 { TCP_CWR } else { 0 };
            put(&mut template, transport + 13, &[flags & !not_last & !not_first]);
        } else {
            let len = (template.len() - transport + piece.len()) as u16;
            put(&mut template, transport + 4, &len.to_be_bytes());
        }
        let mut frame = [&template[..], piece].concat();
        Checksums { network: true, transport: true }.fill(&mut frame);
        each(frame);
    }
    Some(())
}

/// Type of the IP header behind VLAN tags, and where that begins.
fn network(frame: &[u8]) -> Option<(u16, usize)> {
    let mut kind = VLAN_AT;
    while [ETHERTYPE_VLAN, ETHERTYPE_SERVICE_VLAN].contains(&be16(frame, kind)) {
        kind += VLAN_LEN;
    }
    let value = be16(frame, kind);
    [ETHERTYPE_IPV4, ETHERTYPE_IPV6].contains(&value).then_some((value, kind + 2))
}

/// Puts a VLAN tag in.
pub(super) fn insert_tag(frame: &mut Vec<u8>, service: bool, tag: u16) {
    if frame.len() >= VLAN_AT {
        let kind = if service { ETHERTYPE_SERVICE_VLAN } else { ETHERTYPE_VLAN };
        frame.splice(VLAN_AT..VLAN_AT, [kind.to_be_bytes(), tag.to_be_bytes()].concat());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::frame::{Frame, Ip};

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
                assert_eq!(be32(frame, at + 4), sequence);
                let expected = [0x90, 0x10, 0x19][index];
                assert_eq!(frame[at + 13], expected, "flags of segment {index}");
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
        wrong[ETHERNET_LEN + 8] ^= 1;
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
