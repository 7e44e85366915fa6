//! Multicast groups of an InfiniBand subnet: which of them a port is in (IBA 10.5, 15.2.5.17).
//!
//! The subnet's manager decides, and says it here. A port receives what is sent to the group's LID,
//! a multicast address on the loopback interface, where the kernel hands each port its own copy.
//! Every port's memberships are in its shared directory, so a group is whatever the living ports
//! are in: it ends with its last member, however that ends. Queue pairs are attached apart from it
//! ([`crate::fabric::multicast`]).

use engine_thread::{lock, read, write};
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, RwLock};
use transport::values::Gid;

/// Groups of one port.
pub const MAX_MEMBERSHIPS: usize = 256;
/// Join states in which packets are received: full and non-member (IBA 15.2.5.17).
const RECEIVES: u8 = 0b0011;
/// Words of a membership in a directory.
pub(crate) const WORDS: usize = 5;

/// A port's membership of a group, and what the group is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Membership {
    /// The group.
    pub mgid: Gid,
    /// LID of the group.
    pub mlid: u16,
    /// Bits of the JoinState component.
    pub join_state: u8,
    /// Q_Key of its packets.
    pub qkey: u32,
    /// Their partition.
    pub pkey: u16,
    /// Code of the path MTU.
    pub mtu: u8,
    /// Code of the rate.
    pub rate: u8,
    /// Code of the packets' lifetime.
    pub packet_life: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub sl: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
}

impl Membership {
    /// Whether packets are received, not only sent.
    pub(crate) fn receives(&self) -> bool {
        self.join_state & RECEIVES != 0
    }

    pub(crate) fn to_words(self) -> [u64; WORDS] {
        let gid = u128::from_be_bytes(self.mgid);
        let Membership { mlid, join_state, mtu, rate, packet_life, .. } = self;
        let kind = [join_state, mtu, rate, packet_life, self.traffic_class, self.sl];
        let [a, b] = mlid.to_be_bytes();
        let [c, d, e, f, g, h] = kind;
        [
            (gid >> 64) as u64,
            gid as u64,
            u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            u64::from(self.qkey) << 16 | u64::from(self.pkey),
            u64::from(self.flow_label) << 8 | u64::from(self.hop_limit),
        ]
    }

    pub(crate) fn from_words(words: [u64; WORDS]) -> Membership {
        let [high, low, kind, keys, route] = words;
        let [a, b, join_state, mtu, rate, packet_life, traffic_class, sl] = kind.to_be_bytes();
        Membership {
            mgid: (u128::from(high) << 64 | u128::from(low)).to_be_bytes(),
            mlid: u16::from_be_bytes([a, b]),
            join_state,
            qkey: (keys >> 16) as u32,
            pkey: keys as u16,
            mtu,
            rate,
            packet_life,
            traffic_class,
            sl,
            flow_label: (route >> 8) as u32 & 0xf_ffff,
            hop_limit: route as u8,
        }
    }
}

/// A device's memberships, by their places in its directory, and what it knows of others.
#[derive(Default)]
pub(crate) struct Memberships {
    places: Mutex<Vec<Option<Membership>>>,
    /// GUIDs of the subnet's ports by LID, as of the last look.
    guids: RwLock<HashMap<u16, u64>>,
}

impl Memberships {
    pub(crate) fn places(&self) -> MutexGuard<'_, Vec<Option<Membership>>> {
        lock(&self.places)
    }

    /// The groups that packets to `mlid` are for.
    pub(crate) fn groups_at(&self, mlid: u16) -> Vec<Gid> {
        let places = self.places();
        let those = places.iter().flatten().filter(|m| m.mlid == mlid && m.receives());
        those.map(|membership| membership.mgid).collect()
    }

    /// GUID of the port with this LID, if it is known.
    pub(crate) fn guid_of(&self, lid: u16) -> Option<u64> {
        read(&self.guids).get(&lid).copied()
    }

    /// These are the subnet's ports now: their GUIDs by LID.
    pub(crate) fn know(&self, guids: HashMap<u16, u64>) {
        *write(&self.guids) = guids;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_pass_through_a_directory() {
        let membership = Membership {
            mgid: std::array::from_fn(|at| 0xff - at as u8),
            mlid: 0xc123,
            join_state: 9,
            qkey: 0x8765_4321,
            pkey: 0xfffe,
            mtu: 5,
            rate: 21,
            packet_life: 14,
            traffic_class: 3,
            sl: 7,
            flow_label: 0xf_edcb,
            hop_limit: 200,
        };
        assert_eq!(Membership::from_words(membership.to_words()), membership);
    }
}
