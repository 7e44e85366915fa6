//! PathRecord (IBA 15.2.5.16): the way from one port to another, as far as it is used.

use super::component::{Component, SELECTED, exactly};
use crate::field::{Field, be16, byte, get, put};

/// Where the fields stand.
mod field {
    use crate::field::Field;

    pub(super) const DGID: Field = 8..24;
    pub(super) const SGID: Field = 24..40;
    pub(super) const DLID: Field = 40..42;
    pub(super) const SLID: Field = 42..44;
    /// Whether the way back is the same, and how many ways are asked for.
    pub(super) const REVERSIBLE_AND_COUNT: usize = 49;
    pub(super) const PKEY: Field = 50..52;
    /// Class of service, and in the low four bits the service level.
    pub(super) const QOS_CLASS_AND_SL: Field = 52..54;
    pub(super) const MTU: usize = 54;
    pub(super) const RATE: usize = 55;
    pub(super) const PACKET_LIFE: usize = 56;
}

/// A path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathRecord {
    /// GID of the port that is sent to.
    pub dgid: [u8; 16],
    /// GID of the port that sends.
    pub sgid: [u8; 16],
    /// LID of the port that is sent to.
    pub dlid: u16,
    /// LID of the port that sends.
    pub slid: u16,
    /// Whether the way back is the same.
    pub reversible: bool,
    /// Paths that are asked for or answered, 7 bits.
    pub count: u8,
    /// Partition.
    pub pkey: u16,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Path MTU, 6 bits.
    pub mtu: u8,
    /// Rate, 6 bits.
    pub rate: u8,
    /// Packet lifetime: 4.096 µs · 2^n, 6 bits.
    pub packet_life: u8,
}

impl PathRecord {
    /// Length of the record, in bytes.
    pub const LEN: usize = 64;

    /// [`PathRecord::dgid`], a component.
    pub const DGID: Component = Component::bytes(2, field::DGID);
    /// [`PathRecord::sgid`], a component.
    pub const SGID: Component = Component::bytes(3, field::SGID);
    /// [`PathRecord::dlid`], a component.
    pub const DLID: Component = Component::bytes(4, field::DLID);
    /// [`PathRecord::slid`], a component.
    pub const SLID: Component = Component::bytes(5, field::SLID);
    /// [`PathRecord::pkey`], a component.
    pub const PKEY: Component = Component::bytes(13, field::PKEY);
    /// [`PathRecord::sl`], a component.
    pub const SL: Component = Component::bits(15, field::QOS_CLASS_AND_SL, 12, 4);
    /// [`PathRecord::mtu`], a component with a selector.
    pub const MTU: Component = Component::bytes(17, one(field::MTU));
    /// [`PathRecord::rate`], a component with a selector.
    pub const RATE: Component = Component::bytes(19, one(field::RATE));
    /// [`PathRecord::packet_life`], a component with a selector.
    pub const PACKET_LIFE: Component = Component::bytes(21, one(field::PACKET_LIFE));

    /// What a record says, but for its selectors; what is not there is zero.
    pub fn parse(record: &[u8]) -> PathRecord {
        let both = byte(record, field::REVERSIBLE_AND_COUNT);
        PathRecord {
            dgid: get(record, field::DGID),
            sgid: get(record, field::SGID),
            dlid: be16(record, field::DLID),
            slid: be16(record, field::SLID),
            reversible: both & 0x80 != 0,
            count: both & 0x7f,
            pkey: be16(record, field::PKEY),
            sl: (be16(record, field::QOS_CLASS_AND_SL) & 0xf) as u8,
            mtu: byte(record, field::MTU) & SELECTED,
            rate: byte(record, field::RATE) & SELECTED,
            packet_life: byte(record, field::PACKET_LIFE) & SELECTED,
        }
    }

    /// The record, with each selected value as exactly itself.
    pub fn emit(&self) -> [u8; PathRecord::LEN] {
        let mut out = [0; PathRecord::LEN];
        put(&mut out, field::DGID, &self.dgid);
        put(&mut out, field::SGID, &self.sgid);
        put(&mut out, field::DLID, &self.dlid.to_be_bytes());
        put(&mut out, field::SLID, &self.slid.to_be_bytes());
        out[field::REVERSIBLE_AND_COUNT] = u8::from(self.reversible) << 7 | self.count & 0x7f;
        put(&mut out, field::PKEY, &self.pkey.to_be_bytes());
        put(&mut out, field::QOS_CLASS_AND_SL, &u16::from(self.sl & 0xf).to_be_bytes());
        out[field::MTU] = exactly(self.mtu);
        out[field::RATE] = exactly(self.rate);
        out[field::PACKET_LIFE] = exactly(self.packet_life);
        out
    }
}

/// A field of one byte.
const fn one(at: usize) -> Field {
    at..at + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_is_laid_out_as_specified() {
        let path = PathRecord {
            dgid: [1; 16],
            sgid: [2; 16],
            dlid: 0x0304,
            slid: 0x0506,
            reversible: true,
            count: 1,
            pkey: 0xfffe,
            sl: 7,
            mtu: 5,
            rate: 21,
            packet_life: 14,
        };
        let bytes = path.emit();
        assert_eq!(bytes[6..10], [0, 0, 1, 1]);
        assert_eq!(bytes[22..26], [1, 1, 2, 2]);
        assert_eq!(bytes[39..44], [2, 3, 4, 5, 6]);
        assert_eq!(bytes[48..58], [0, 0x81, 0xff, 0xfe, 0, 7, 0x85, 0x95, 0x8e, 0]);
        assert_eq!(PathRecord::parse(&bytes), path);
        assert_eq!(PathRecord::parse(&bytes[..41]).dlid, 0x0300);
    }
}
