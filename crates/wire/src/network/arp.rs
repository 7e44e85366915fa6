//! ARP packets for IPv4 on Ethernet (RFC 826); those of other protocols are none here.

use super::ethernet::{ETHERTYPE_IPV4, Mac};
use crate::field::{be16, get, put};
use std::net::Ipv4Addr;

/// Where the fields stand.
pub mod field {
    use crate::field::Field;

    /// Kind of hardware.
    pub const HARDWARE: Field = 0..2;
    /// Protocol whose addresses are asked for, an Ethernet type.
    pub const PROTOCOL: Field = 2..4;
    /// Length of a hardware address.
    pub const HARDWARE_LENGTH: usize = 4;
    /// Length of a protocol address.
    pub const PROTOCOL_LENGTH: usize = 5;
    /// Request or reply.
    pub const OPERATION: Field = 6..8;
    /// Hardware address of the sender.
    pub const SENDER_HARDWARE: Field = 8..14;
    /// Protocol address of the sender.
    pub const SENDER_PROTOCOL: Field = 14..18;
    /// Hardware address of the target; nothing in a request.
    pub const TARGET_HARDWARE: Field = 18..24;
    /// Protocol address of the target.
    pub const TARGET_PROTOCOL: Field = 24..28;
}

/// Length of a packet, in bytes.
pub const LEN: usize = field::TARGET_PROTOCOL.end;

const HARDWARE_ETHERNET: u16 = 1;
const HARDWARE_LEN: u8 = 6;
const PROTOCOL_LEN: u8 = 4;

/// What a packet does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub enum Operation {
    /// Asks who has the target's protocol address.
    Request = 1,
    /// Says that the sender has its protocol address.
    Reply = 2,
}

/// An ARP packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Repr {
    /// Request or reply.
    pub operation: Operation,
    /// Hardware address of the sender.
    pub sender_mac: Mac,
    /// IPv4 address of the sender.
    pub sender: Ipv4Addr,
    /// Hardware address of the target; it counts for nothing in a request.
    pub target_mac: Mac,
    /// IPv4 address of the target.
    pub target: Ipv4Addr,
}

impl Repr {
    /// The packet at the beginning of `bytes`; `None` if it is not whole, or is about other
    /// addresses than those of Ethernet and IPv4.
    pub fn parse(bytes: &[u8]) -> Option<Repr> {
        let packet: &[u8; LEN] = bytes.first_chunk()?;
        let lengths = [packet[field::HARDWARE_LENGTH], packet[field::PROTOCOL_LENGTH]];
        if be16(packet, field::HARDWARE) != HARDWARE_ETHERNET
            || be16(packet, field::PROTOCOL) != ETHERTYPE_IPV4
            || lengths != [HARDWARE_LEN, PROTOCOL_LEN]
        {
            return None;
        }
        Some(Repr {
            operation: match be16(packet, field::OPERATION) {
                1 => Operation::Request,
                2 => Operation::Reply,
                _ => return None,
            },
            sender_mac: get(packet, field::SENDER_HARDWARE),
            sender: get::<4>(packet, field::SENDER_PROTOCOL).into(),
            target_mac: get(packet, field::TARGET_HARDWARE),
            target: get::<4>(packet, field::TARGET_PROTOCOL).into(),
        })
    }

    /// The packet as it stands in a frame.
    pub fn emit(&self) -> [u8; LEN] {
        let mut out = [0; LEN];
        put(&mut out, field::HARDWARE, &HARDWARE_ETHERNET.to_be_bytes());
        put(&mut out, field::PROTOCOL, &ETHERTYPE_IPV4.to_be_bytes());
        out[field::HARDWARE_LENGTH] = HARDWARE_LEN;
        out[field::PROTOCOL_LENGTH] = PROTOCOL_LEN;
        put(&mut out, field::OPERATION, &(self.operation as u16).to_be_bytes());
        put(&mut out, field::SENDER_HARDWARE, &self.sender_mac);
        put(&mut out, field::SENDER_PROTOCOL, &self.sender.octets());
        put(&mut out, field::TARGET_HARDWARE, &self.target_mac);
        put(&mut out, field::TARGET_PROTOCOL, &self.target.octets());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; LEN] =
        [0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 9, 10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 10, 0, 0, 1];

    #[test]
    fn packets_are_read_and_made() {
        let request = Repr {
            operation: Operation::Request,
            sender_mac: [2, 0, 0, 0, 0, 9],
            sender: Ipv4Addr::new(10, 0, 0, 9),
            target_mac: [0; 6],
            target: Ipv4Addr::new(10, 0, 0, 1),
        };
        assert_eq!(Repr::parse(&BYTES), Some(request));
        assert_eq!(request.emit(), BYTES);
        let reply = Repr { operation: Operation::Reply, target_mac: [7; 6], ..request };
        assert_eq!(Repr::parse(&[&reply.emit()[..], &[0; 18]].concat()), Some(reply));
    }

    #[test]
    fn what_is_cut_or_about_something_else_is_none() {
        for len in 0..LEN {
            assert_eq!(Repr::parse(&BYTES[..len]), None, "{len} bytes");
        }
        for at in 0..8 {
            let mut wrong = BYTES;
            wrong[at] ^= 0x40;
            assert_eq!(Repr::parse(&wrong), None, "byte {at}");
        }
    }
}
