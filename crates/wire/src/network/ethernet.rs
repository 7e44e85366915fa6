//! Ethernet headers and their VLAN tags (IEEE 802.3 section 3, IEEE 802.1Q section 9). Frames come
//! and go without their frame check sequence.

use crate::field::{be16, get, put};

/// A hardware address.
pub type Mac = [u8; 6];

/// Where the fields stand.
pub mod field {
    use crate::field::Field;

    /// Destination address.
    pub const DESTINATION: Field = 0..6;
    /// Source address.
    pub const SOURCE: Field = 6..12;
    /// Type of what follows; in a frame with a VLAN tag, the type of the tag.
    pub const ETHER_TYPE: Field = 12..14;
    /// Control information of a VLAN tag.
    pub const TAG_CONTROL: Field = 14..16;
    /// Type of what follows a VLAN tag.
    pub const TAGGED_TYPE: Field = 16..18;
}

/// Length of a header without a tag, in bytes.
pub const HEADER_LEN: usize = field::ETHER_TYPE.end;
/// Length of a VLAN tag, in bytes: its type and its control information.
pub const VLAN_LEN: usize = 4;
/// Where a VLAN tag stands: behind the two addresses.
pub const VLAN_AT: usize = field::ETHER_TYPE.start;
/// Least length of a frame, in bytes.
pub const LEAST_LEN: usize = 60;

/// The type of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// The type of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// The type of a customer VLAN tag.
pub const ETHERTYPE_VLAN: u16 = 0x8100;
/// The type of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// The type of a service VLAN tag.
pub const ETHERTYPE_SERVICE_VLAN: u16 = 0x88a8;

/// An Ethernet header with at most one tag, a customer's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Destination.
    pub dst: Mac,
    /// Source.
    pub src: Mac,
    /// Control information of the VLAN tag: priority 3, drop eligible 1, VLAN 12 bits.
    pub vlan: Option<u16>,
    /// Type of what follows the addresses and the tag.
    pub ether_type: u16,
}

impl Repr {
    /// The header of a frame, and what follows it; `None` if it is not whole. A tag that is cut
    /// short is none.
    #[inline]
    pub fn parse(frame: &[u8]) -> Option<(Repr, &[u8])> {
        let payload = frame.get(HEADER_LEN..)?;
        let untagged = Repr {
            dst: get(frame, field::DESTINATION),
            src: get(frame, field::SOURCE),
            vlan: None,
            ether_type: be16(frame, field::ETHER_TYPE),
        };
        match payload.get(VLAN_LEN..) {
            Some(inner) if untagged.ether_type == ETHERTYPE_VLAN => {
                let vlan = Some(be16(frame, field::TAG_CONTROL));
                let ether_type = be16(frame, field::TAGGED_TYPE);
                Some((Repr { vlan, ether_type, ..untagged }, inner))
            }
            _ => Some((untagged, payload)),
        }
    }

    /// Length that [`Repr::emit`] writes, in bytes.
    pub fn header_len(&self) -> usize {
        HEADER_LEN + if self.vlan.is_some() { VLAN_LEN } else { 0 }
    }

    /// Writes the header to the front of `out`.
    pub fn emit(&self, out: &mut [u8]) {
        put(out, field::DESTINATION, &self.dst);
        put(out, field::SOURCE, &self.src);
        match self.vlan {
            Some(control) => {
                put(out, VLAN_AT..VLAN_AT + VLAN_LEN, &tag_bytes(ETHERTYPE_VLAN, control));
                put(out, field::TAGGED_TYPE, &self.ether_type.to_be_bytes());
            }
            None => put(out, field::ETHER_TYPE, &self.ether_type.to_be_bytes()),
        }
    }
}

/// Whether a hardware address is that of a group.
pub fn is_multicast(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

/// A VLAN tag of this type as it stands in a frame.
pub fn tag_bytes(tag_type: u16, control: u16) -> [u8; VLAN_LEN] {
    let ([t0, t1], [c0, c1]) = (tag_type.to_be_bytes(), control.to_be_bytes());
    [t0, t1, c0, c1]
}

/// Control information of a frame's customer tag, if it begins with one.
pub fn tag_of(frame: &[u8]) -> Option<u16> {
    let tagged = be16(frame, field::ETHER_TYPE) == ETHERTYPE_VLAN;
    (tagged && frame.len() >= field::TAG_CONTROL.end).then(|| be16(frame, field::TAG_CONTROL))
}

/// Type of what lies behind all tags of a frame, and where that begins.
pub fn behind_tags(frame: &[u8]) -> Option<(u16, usize)> {
    let mut at = VLAN_AT;
    loop {
        let body = at.checked_add(2)?;
        let kind = u16::from_be_bytes(*frame.get(at..body)?.first_chunk()?);
        match kind {
            ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN => at = at.checked_add(VLAN_LEN)?,
            kind => return Some((kind, body)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: [u8; 15] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x08, 0x06, 0xee];
    const TAGGED: [u8; 19] =
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0x81, 0x00, 0x60, 0x05, 0x86, 0xdd, 0xee];

    fn plain() -> Repr {
        let (dst, src) = ([1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]);
        Repr { dst, src, vlan: None, ether_type: ETHERTYPE_ARP }
    }

    #[test]
    fn headers_with_and_without_a_tag_are_read_and_made() {
        let tagged = Repr { vlan: Some(0x6005), ether_type: ETHERTYPE_IPV6, ..plain() };
        for (header, bytes) in [(plain(), &PLAIN[..]), (tagged, &TAGGED)] {
            assert_eq!(Repr::parse(bytes), Some((header, &[0xee][..])));
            let mut out = vec![0; header.header_len()];
            header.emit(&mut out);
            assert_eq!(out, bytes[..bytes.len() - 1]);
        }
    }

    #[test]
    fn what_is_cut_is_no_header_or_no_tag() {
        for len in 0..HEADER_LEN {
            assert_eq!(Repr::parse(&TAGGED[..len]), None, "{len} bytes");
        }
        for len in HEADER_LEN..TAGGED.len() - 1 {
            let (header, rest) = Repr::parse(&TAGGED[..len]).unwrap();
            assert_eq!((header.vlan, header.ether_type), (None, ETHERTYPE_VLAN));
            assert_eq!(rest.len(), len - HEADER_LEN);
        }
        assert_eq!((tag_of(&TAGGED[..15]), tag_of(&TAGGED[..16])), (None, Some(0x6005)));
        assert_eq!(tag_of(&PLAIN), None);
    }

    #[test]
    fn any_number_of_tags_is_passed() {
        assert_eq!(behind_tags(&PLAIN), Some((ETHERTYPE_ARP, 14)));
        assert_eq!(behind_tags(&TAGGED), Some((ETHERTYPE_IPV6, 18)));
        let outer = tag_bytes(ETHERTYPE_SERVICE_VLAN, 7);
        let double = [&TAGGED[..12], &outer, &TAGGED[12..]].concat();
        assert_eq!(behind_tags(&double), Some((ETHERTYPE_IPV6, 22)));
        for len in 0..22 {
            assert_eq!(behind_tags(&double[..len]), None, "{len} bytes");
        }
    }
}
