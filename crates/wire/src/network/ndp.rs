//! Neighbour discovery of IPv6 (RFC 4861): solicitations as they are read, advertisements as they
//! are made. Both are messages of ICMPv6 (RFC 4443), which begin with type, code and checksum.

use super::ethernet::Mac;
use super::internet::{fold, pseudo_header, sum};
use super::ip::PROTOCOL_ICMPV6;
use crate::field::{get, put};
use std::net::Ipv6Addr;

/// Where the fields stand in both messages.
pub mod field {
    use crate::field::Field;

    /// Type of the message.
    pub const TYPE: usize = 0;
    /// Checksum with the pseudo header of IPv6.
    pub const CHECKSUM: Field = 2..4;
    /// Flags of an advertisement.
    pub const FLAGS: usize = 4;
    /// The address that is asked for, or that the sender has.
    pub const TARGET: Field = 8..24;
    /// Kind of the first option.
    pub const OPTION: usize = 24;
    /// Length of that option, in units of eight bytes.
    pub const OPTION_LENGTH: usize = 25;
    /// The hardware address in that option.
    pub const LINK_ADDRESS: Field = 26..32;
}

const SOLICITATION: u8 = 135;
const SOLICITATION_LEN: usize = field::TARGET.end;
const ADVERTISEMENT: u8 = 136;
/// Length of an advertisement with the option that names a hardware address, in bytes.
pub const ADVERTISEMENT_LEN: usize = field::LINK_ADDRESS.end;
/// It answers a solicitation.
const SOLICITED: u8 = 0x40;
/// What it says counts more than what the receiver knows.
const OVERRIDE: u8 = 0x20;
const TARGET_LINK_ADDRESS: u8 = 2;

/// A neighbour solicitation (RFC 4861, section 4.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Solicitation {
    /// The address that is asked for.
    pub target: Ipv6Addr,
}

impl Solicitation {
    /// The message at the beginning of `bytes`, which follow the IPv6 header; `None` for another
    /// one, or one cut short. Its checksum is not verified.
    pub fn parse(bytes: &[u8]) -> Option<Solicitation> {
        let message: &[u8; SOLICITATION_LEN] = bytes.first_chunk()?;
        let target = get::<16>(message, field::TARGET).into();
        (message[field::TYPE] == SOLICITATION).then_some(Solicitation { target })
    }

    /// The message without options, from `src` to `dst`.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr) -> [u8; SOLICITATION_LEN] {
        let mut out = [0; SOLICITATION_LEN];
        out[field::TYPE] = SOLICITATION;
        put(&mut out, field::TARGET, &self.target.octets());
        fill_checksum(&mut out, src, dst);
        out
    }
}

/// A neighbour advertisement (RFC 4861, section 4.4) that answers a solicitation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Advertisement {
    /// The address that the sender has.
    pub target: Ipv6Addr,
    /// The sender's hardware address.
    pub mac: Mac,
}

impl Advertisement {
    /// The message from `src` to `dst`.
    pub fn emit(&self, src: Ipv6Addr, dst: Ipv6Addr) -> [u8; ADVERTISEMENT_LEN] {
        let mut out = [0; ADVERTISEMENT_LEN];
        out[field::TYPE] = ADVERTISEMENT;
        out[field::FLAGS] = SOLICITED | OVERRIDE;
        put(&mut out, field::TARGET, &self.target.octets());
        out[field::OPTION] = TARGET_LINK_ADDRESS;
        out[field::OPTION_LENGTH] = 1;
        put(&mut out, field::LINK_ADDRESS, &self.mac);
        fill_checksum(&mut out, src, dst);
        out
    }

    /// The message at the beginning of `bytes`, which follow the IPv6 header; `None` for another
    /// one, one cut short, or one that names no hardware address first. Neither checksum nor flags
    /// are looked at.
    pub fn parse(bytes: &[u8]) -> Option<Advertisement> {
        let message: &[u8; ADVERTISEMENT_LEN] = bytes.first_chunk()?;
        let option = [message[field::OPTION], message[field::OPTION_LENGTH]];
        let named = message[field::TYPE] == ADVERTISEMENT && option == [TARGET_LINK_ADDRESS, 1];
        named.then(|| Advertisement {
            target: get::<16>(message, field::TARGET).into(),
            mac: get(message, field::LINK_ADDRESS),
        })
    }
}

fn fill_checksum(message: &mut [u8], src: Ipv6Addr, dst: Ipv6Addr) {
    put(message, field::CHECKSUM, &[0; 2]);
    let value = !fold(sum_with_pseudo_header(message, src, dst));
    put(message, field::CHECKSUM, &value.to_be_bytes());
}

fn sum_with_pseudo_header(message: &[u8], src: Ipv6Addr, dst: Ipv6Addr) -> u64 {
    let (src, dst) = (src.octets(), dst.octets());
    let addresses = [src, dst];
    pseudo_header(addresses.as_flattened(), PROTOCOL_ICMPV6, message.len()) + sum(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SRC: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const DST: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);

    #[test]
    fn messages_are_read_and_made() {
        let asks = Solicitation { target: DST };
        let bytes = asks.emit(SRC, DST);
        assert_eq!((bytes[0], &bytes[4..8]), (135, &[0; 4][..]));
        assert_eq!(fold(sum_with_pseudo_header(&bytes, SRC, DST)), 0xffff);
        assert_eq!(Solicitation::parse(&bytes), Some(asks));
        assert_eq!(Advertisement::parse(&[&bytes[..], &[2, 1, 0, 0, 0, 0, 0, 0]].concat()), None);

        let answers = Advertisement { target: DST, mac: [2, 3, 4, 5, 6, 7] };
        let bytes = answers.emit(DST, SRC);
        assert_eq!((bytes[0], &bytes[4..8]), (136, &[0x60, 0, 0, 0][..]));
        assert_eq!(bytes[24..], [2, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(fold(sum_with_pseudo_header(&bytes, DST, SRC)), 0xffff);
        assert_eq!(Advertisement::parse(&bytes), Some(answers));
        assert_eq!(Solicitation::parse(&bytes), None);
        for len in 0..ADVERTISEMENT_LEN {
            assert_eq!(Advertisement::parse(&bytes[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn what_is_cut_is_no_solicitation() {
        let bytes = Solicitation { target: DST }.emit(SRC, DST);
        for len in 0..bytes.len() {
            assert_eq!(Solicitation::parse(&bytes[..len]), None, "{len} bytes");
        }
    }
}
