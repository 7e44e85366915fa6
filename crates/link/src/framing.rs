//! RoCEv2 packets as Ethernet frames (IBA A17.3): the headers in front of a packet's transport
//! bytes, made and read. Frames that are no such packet, or not whole, are
//! none here; whatever they hold, reading ends.

use crate::flow::Path;
use crate::trace::Traced;
use wire::ethernet::{self, ETHERTYPE_IPV4, ETHERTYPE_IPV6, Mac, VLAN_LEN};
use wire::field::be16;
use wire::frame::Frame;
use wire::grh::Grh;
use wire::ip::{Addresses, Ip};
use wire::{ROCE_PORT, ipv4, ipv6, udp};

const MAX_LEN: usize = ethernet::HEADER_LEN + VLAN_LEN + ipv6::HEADER_LEN + udp::HEADER_LEN;
const DEFAULT_HOP_LIMIT: u8 = 64;

/// What a path over an Ethernet says besides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ethernet {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// Tag control information, where frames have a VLAN tag.
    pub vlan: Option<u16>,
    /// UDP source port; 0 leaves it to the endpoint.
    pub udp_src: u16,
}

/// The headers before a packet's transport bytes, but for lengths and checksum.
#[derive(Clone)]
pub(crate) struct Head {
    bytes: [u8; MAX_LEN],
    len: usize,
    /// Where the IP header begins.
    ip: usize,
    /// Where the UDP header begins.
    udp: usize,
    v4: bool,
}

impl Head {
    /// For packets along `path` between `addresses`, which are its own.
    pub(crate) fn new(
        ethernet: &Ethernet,
        path: &Path,
        addresses: Addresses,
        udp_src: u16,
    ) -> Head {
        let v4 = matches!(addresses, Addresses::V4(..));
        let Ethernet { dst, src, vlan, .. } = *ethernet;
        let ether_type = if v4 { ETHERTYPE_IPV4 } else { ETHERTYPE_IPV6 };
        let outer = ethernet::Repr { dst, src, vlan, ether_type };
        let hop_limit = if path.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { path.hop_limit };
        let inner = Grh {
            addresses,
            traffic_class: path.traffic_class,
            flow_label: path.flow_label,
            hop_limit,
            udp_len: 0,
            identification: 0,
        };
        let (inner, ip) = (inner.ip(), outer.header_len());
        let udp = ip + inner.header_len();
        let len = udp + udp::HEADER_LEN;
        let ports = udp::Repr { src: udp_src, dst: ROCE_PORT, len: 0 };
        let mut bytes = [0; MAX_LEN];
        outer.emit(&mut bytes);
        inner.emit(&mut bytes[ip..]);
        bytes[udp..len].copy_from_slice(&ports.emit());
        Head { bytes, len, ip, udp, v4 }
    }

    /// Bytes of the headers.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Writes them into `out`, which is [`Head::len`] long, before `transport_len` bytes with their
    /// ICRC.
    pub(crate) fn emit(&self, out: &mut [u8], transport_len: usize) {
        out.copy_from_slice(&self.bytes[..self.len]);
        let udp_len = (transport_len + udp::HEADER_LEN) as u16;
        let (ip, udp) = out[self.ip..].split_at_mut(self.udp - self.ip);
        udp::set_len(udp, udp_len);
        if self.v4 {
            ipv4::set_total_len(ip, udp_len + ipv4::HEADER_LEN as u16);
        } else {
            ipv6::set_payload_len(ip, udp_len);
        }
    }
}

/// A frame that holds a RoCEv2 packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Framed<'a> {
    pub(crate) mac: Mac,
    /// Control information of its VLAN tag.
    pub(crate) vlan: Option<u16>,
    pub(crate) packet: Traced<'a>,
}

impl<'a> Framed<'a> {
    /// Reads a frame; `None` for one that holds no RoCEv2 packet. What lies behind the packet is
    /// padding.
    pub(crate) fn parse(frame: &'a [u8]) -> Option<Framed<'a>> {
        let parsed = Frame::parse(frame).filter(Frame::is_roce)?;
        let (_, packet) = ethernet::Repr::parse(frame)?;
        let ip = parsed.ip?;
        let (src, dst, identification) = match ip {
            Ip::V4(v4) => (v4.src.into(), v4.dst.into(), v4.identification),
            Ip::V6(v6) => (v6.src.into(), v6.dst.into(), 0),
        };
        let datagram = datagram(&ip, packet)?;
        let packet = Traced {
            src,
            dst,
            udp_src: parsed.ports?.src,
            traffic_class: ip.traffic_class(),
            hop_limit: ip.hop_limit(),
            identification,
            datagram: udp::Repr::parse(datagram)?.payload(datagram)?,
        };
        Some(Framed { mac: parsed.dst, vlan: parsed.vlan, packet })
    }
}

/// The UDP datagram in a packet whose header is `ip`. The ICRC knows no IPv4 header with options or
/// of a fragment.
fn datagram<'a>(ip: &Ip, packet: &'a [u8]) -> Option<&'a [u8]> {
    match ip {
        Ip::V4(v4) => {
            let plain = ipv4::header_len(packet) == ipv4::HEADER_LEN
                && be16(packet, ipv4::field::FRAGMENT) == ipv4::DONT_FRAGMENT;
            let whole = packet.get(ipv4::HEADER_LEN..usize::from(v4.total_len))?;
            plain.then_some(whole)
        }
        Ip::V6(v6) => packet.get(ipv6::HEADER_LEN..)?.get(..usize::from(v6.payload_len)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(src: &str, dst: &str, vlan: Option<u16>) -> Vec<u8> {
        let ethernet = Ethernet { dst: [1; 6], src: [2; 6], vlan, udp_src: 0 };
        let path = Path {
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            scope_id: 0,
            traffic_class: 0x6a,
            hop_limit: 7,
            flow_label: 0x12345,
            ethernet: Some(ethernet),
        };
        let addresses = Addresses::new(path.src, path.dst).unwrap();
        let head = Head::new(&ethernet, &path, addresses, 0xc123);
        let mut frame = vec![0; head.len()];
        head.emit(&mut frame, 16);
        frame.extend([9; 16]);
        frame
    }

    #[test]
    fn what_is_made_is_read_back() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            for vlan in [None, Some(0x6005)] {
                let mut frame = framed(src, dst, vlan);
                let packet = Traced {
                    src: src.parse().unwrap(),
                    dst: dst.parse().unwrap(),
                    udp_src: 0xc123,
                    traffic_class: 0x6a,
                    hop_limit: 7,
                    identification: 0,
                    datagram: &[9; 16],
                };
                let expected = Framed { mac: [1; 6], vlan, packet };
                frame.extend([0; 5]);
                assert_eq!(Framed::parse(&frame), Some(expected), "with padding behind it");
                let parsed = Frame::parse(&frame).unwrap();
                assert_eq!((parsed.vlan, parsed.ports.unwrap().dst), (vlan, ROCE_PORT));
            }
        }
    }

    #[test]
    fn the_ipv4_header_sums_to_nothing() {
        let frame = framed("10.0.0.1", "10.0.0.2", None);
        let ip = &frame[ethernet::HEADER_LEN..][..ipv4::HEADER_LEN];
        assert!(ipv4::checksum_is_right(ip));
    }

    #[test]
    fn what_is_cut_short_or_lies_is_no_packet() {
        for (src, dst) in [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")] {
            let frame = framed(src, dst, None);
            for len in 0..frame.len() {
                assert_eq!(Framed::parse(&frame[..len]), None, "{len} bytes");
            }
            for at in 12..frame.len() - 16 {
                let mut wrong = frame.clone();
                wrong[at] ^= 0xff;
                let _ = Framed::parse(&wrong);
            }
        }
    }
}
