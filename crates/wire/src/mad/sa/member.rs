//! MCMemberRecord (IBA 15.2.5.17): a port's place in a multicast group.

use super::component::{Component, SELECTED, exactly};
use crate::field::{Field, be16, be32, byte, get, put};

/// Where the fields stand.
mod field {
    use crate::field::Field;

    pub(super) const MGID: Field = 0..16;
    pub(super) const PORT_GID: Field = 16..32;
    pub(super) const QKEY: Field = 32..36;
    pub(super) const MLID: Field = 36..38;
    pub(super) const MTU: usize = 38;
    pub(super) const TRAFFIC_CLASS: usize = 39;
    pub(super) const PKEY: Field = 40..42;
    pub(super) const RATE: usize = 42;
    pub(super) const PACKET_LIFE: usize = 43;
    /// Service level 4, flow label 20, hop limit 8 bits.
    pub(super) const ROUTE: Field = 44..48;
    pub(super) const SCOPE_AND_STATE: usize = 48;
}

/// A membership.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct McMemberRecord {
    /// GID of the group.
    pub mgid: [u8; 16],
    /// GID of the port.
    pub port_gid: [u8; 16],
    /// Q_Key of the group's datagrams.
    pub qkey: u32,
    /// LID of the group.
    pub mlid: u16,
    /// Path MTU, 6 bits.
    pub mtu: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Partition.
    pub pkey: u16,
    /// Rate, 6 bits.
    pub rate: u8,
    /// Packet lifetime: 4.096 µs · 2^n, 6 bits.
    pub packet_life: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Scope, 4 bits.
    pub scope: u8,
    /// Join state, 4 bits: full member, non-member, send-only non-member, send-only full member.
    pub join_state: u8,
}

impl McMemberRecord {
    /// Length of the record, in bytes.
    pub const LEN: usize = 52;

    /// [`McMemberRecord::mgid`], a component.
    pub const MGID: Component = Component::bytes(0, field::MGID);
    /// [`McMemberRecord::port_gid`], a component.
    pub const PORT_GID: Component = Component::bytes(1, field::PORT_GID);
    /// [`McMemberRecord::qkey`], a component.
    pub const QKEY: Component = Component::bytes(2, field::QKEY);
    /// [`McMemberRecord::mlid`], a component.
    pub const MLID: Component = Component::bytes(3, field::MLID);
    /// [`McMemberRecord::mtu`], a component with a selector.
    pub const MTU: Component = Component::bytes(5, one(field::MTU));
    /// [`McMemberRecord::traffic_class`], a component.
    pub const TRAFFIC_CLASS: Component = Component::bytes(6, one(field::TRAFFIC_CLASS));
    /// [`McMemberRecord::pkey`], a component.
    pub const PKEY: Component = Component::bytes(7, field::PKEY);
    /// [`McMemberRecord::rate`], a component with a selector.
    pub const RATE: Component = Component::bytes(9, one(field::RATE));
    /// [`McMemberRecord::packet_life`], a component with a selector.
    pub const PACKET_LIFE: Component = Component::bytes(11, one(field::PACKET_LIFE));
    /// [`McMemberRecord::sl`], a component.
    pub const SL: Component = Component::bits(12, field::ROUTE, 0, 4);
    /// [`McMemberRecord::flow_label`], a component.
    pub const FLOW_LABEL: Component = Component::bits(13, field::ROUTE, 4, 20);
    /// [`McMemberRecord::hop_limit`], a component.
    pub const HOP_LIMIT: Component = Component::bits(14, field::ROUTE, 24, 8);
    /// [`McMemberRecord::scope`], a component.
    pub const SCOPE: Component = Component::bits(15, one(field::SCOPE_AND_STATE), 0, 4);
    /// [`McMemberRecord::join_state`], a component.
    pub const JOIN_STATE: Component = Component::bits(16, one(field::SCOPE_AND_STATE), 4, 4);

    /// What a record says, but for its selectors; what is not there is zero.
    pub fn parse(record: &[u8]) -> McMemberRecord {
        let route = be32(record, field::ROUTE);
        let both = byte(record, field::SCOPE_AND_STATE);
        McMemberRecord {
            mgid: get(record, field::MGID),
            port_gid: get(record, field::PORT_GID),
            qkey: be32(record, field::QKEY),
            mlid: be16(record, field::MLID),
            mtu: byte(record, field::MTU) & SELECTED,
            traffic_class: byte(record, field::TRAFFIC_CLASS),
            pkey: be16(record, field::PKEY),
            rate: byte(record, field::RATE) & SELECTED,
            packet_life: byte(record, field::PACKET_LIFE) & SELECTED,
            sl: (route >> 28) as u8,
            flow_label: route >> 8 & 0xf_ffff,
            hop_limit: route as u8,
            scope: both >> 4,
            join_state: both & 0xf,
        }
    }

    /// The record, with each selected value as exactly itself.
    pub fn emit(&self) -> [u8; McMemberRecord::LEN] {
        let mut out = [0; McMemberRecord::LEN];
        let label = self.flow_label & 0xf_ffff;
        let route = u32::from(self.sl) << 28 | label << 8 | u32::from(self.hop_limit);
        put(&mut out, field::MGID, &self.mgid);
        put(&mut out, field::PORT_GID, &self.port_gid);
        put(&mut out, field::QKEY, &self.qkey.to_be_bytes());
        put(&mut out, field::MLID, &self.mlid.to_be_bytes());
        out[field::MTU] = exactly(self.mtu);
        out[field::TRAFFIC_CLASS] = self.traffic_class;
        put(&mut out, field::PKEY, &self.pkey.to_be_bytes());
        out[field::RATE] = exactly(self.rate);
        out[field::PACKET_LIFE] = exactly(self.packet_life);
        put(&mut out, field::ROUTE, &route.to_be_bytes());
        out[field::SCOPE_AND_STATE] = self.scope << 4 | self.join_state & 0xf;
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
        let member = McMemberRecord {
            mgid: [1; 16],
            port_gid: [2; 16],
            qkey: 0x0304_0506,
            mlid: 0xc001,
            mtu: 5,
            traffic_class: 7,
            pkey: 0xffff,
            rate: 21,
            packet_life: 14,
            sl: 9,
            flow_label: 0xa_bcde,
            hop_limit: 0x0f,
            scope: 2,
            join_state: 4,
        };
        let bytes = member.emit();
        assert_eq!(bytes[15..17], [1, 2]);
        assert_eq!(bytes[32..42], [3, 4, 5, 6, 0xc0, 1, 0x85, 7, 0xff, 0xff]);
        assert_eq!(bytes[42..49], [0x95, 0x8e, 0x9a, 0xbc, 0xde, 0x0f, 0x24]);
        assert_eq!(McMemberRecord::parse(&bytes), member);
    }
}
