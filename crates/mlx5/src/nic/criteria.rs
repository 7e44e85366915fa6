//! What distinguishes frames (PRM `fte_match_set_lyr_2_4`): their outer headers laid out as the
//! criteria of flow groups are.

use crate::layout::bits::Field;
use crate::request::steering::MATCH_LEN;
use wire::frame::Frame;
use wire::ip::{Ip, PROTOCOL_TCP, PROTOCOL_UDP};

pub(super) type Match = [u8; MATCH_LEN];

/// Whether a frame has a value where the mask is set.
pub(super) fn matches(image: &Match, mask: &Match, value: &Match) -> bool {
    image.iter().zip(mask).zip(value).all(|((image, mask), value)| (image ^ value) & mask == 0)
}

/// A frame's outer headers in the form of criteria (`fte_match_set_lyr_2_4`).
pub(super) fn image(frame: &Frame) -> Match {
    let mut image = [0; MATCH_LEN];
    let mut set = |bit, width, value: u64| Field::new(bit, width).set(&mut image, value);
    let mac = |mac: [u8; 6]| mac.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
    set(0x0, 48, mac(frame.src));
    set(0x30, 16, frame.ether_type.into());
    set(0x40, 48, mac(frame.dst));
    if let Some(tag) = frame.vlan {
        set(0x70, 16, tag.into());
        set(0x90, 1, 1); // cvlan_tag
    }
    match frame.ip {
        None => {}
        Some(Ip::V4(ip)) => {
            set(0x80, 8, ip.protocol.into());
            set(0x88, 8, ip.tos.into());
            set(0x92, 1, u64::from(ip.more_fragments || later_fragment(frame)));
            set(0x93, 4, 4);
            set(0xd8, 8, ip.ttl.into());
            set(0x160, 32, ip.src.to_bits().into());
            set(0x1e0, 32, ip.dst.to_bits().into());
        }
        Some(Ip::V6(ip)) => {
            set(0x80, 8, ip.next_header.into());
            set(0x88, 8, ip.traffic_class.into());
            set(0x93, 4, 6);
            set(0xd8, 8, ip.hop_limit.into());
            for (bit, address) in [(0x100, ip.src), (0x180, ip.dst)] {
                set(bit, 64, (address.to_bits() >> 64) as u64);
                set(bit + 64, 64, address.to_bits() as u64);
            }
        }
    }
    if let (Some(ip), Some(ports)) = (frame.ip, frame.ports) {
        let bit = if ip.protocol() == PROTOCOL_TCP { 0xa0 } else { 0xe0 };
        set(bit, 16, ports.src.into());
        set(bit + 16, 16, ports.dst.into());
    }
    image
}

/// A fragment behind the first has a protocol with ports, and none.
fn later_fragment(frame: &Frame) -> bool {
    let protocol = frame.ip.map_or(0, |ip| ip.protocol());
    [PROTOCOL_TCP, PROTOCOL_UDP].contains(&protocol) && frame.ports.is_none()
}
