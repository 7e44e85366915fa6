//! Multicast groups of an InfiniBand subnet: which of them a port is in (IBA 10.5, 15.2.5.17).
//!
//! The subnet's manager decides, and says it here. A port receives what is sent to the group's LID, a multicast address on the
//! loopback interface, where the kernel hands each port its own copy. Every port's memberships are in its shared
//! directory, so a group is whatever the living ports are in: it ends with its last member, however that ends. Queue pairs are
//! attached apart from it ([`crate::multicast`]).

use crate::device::Device;
use crate::directory::Reader;
use crate::subnet::{gid_of_guid, group_of_lid};
use link::LOOPBACK;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};
use transport::values::Gid;
use transport::{Error, Result};

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
    /// Its LID.
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
    fn receives(&self) -> bool {
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

/// A port of the subnet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubnetPort {
    /// Its LID.
    pub lid: u16,
    /// Its GUID, and its node's.
    pub guid: u64,
    /// The groups it is in.
    pub memberships: Vec<Membership>,
}

/// A device's memberships, by their places in its directory, and what it knows of others.
#[derive(Default)]
pub(crate) struct Memberships {
    places: Mutex<Vec<Option<Membership>>>,
    /// GUIDs of the subnet's ports by LID, as of the last look.
    guids: RwLock<HashMap<u16, u64>>,
}

impl Memberships {
    fn places(&self) -> MutexGuard<'_, Vec<Option<Membership>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The groups that packets to `mlid` are for.
    pub(crate) fn groups_at(&self, mlid: u16) -> Vec<Gid> {
        let places = self.places();
        let those = places.iter().flatten().filter(|m| m.mlid == mlid && m.receives());
        those.map(|membership| membership.mgid).collect()
    }

    /// GID of the port with this LID, if it is known.
    pub(crate) fn gid_of(&self, lid: u16) -> Option<Gid> {
        let guids = self.guids.read().unwrap_or_else(PoisonError::into_inner);
        guids.get(&lid).map(|guid| gid_of_guid(*guid))
    }
}

impl Device {
    /// The subnet's ports, by LID, this one included. Asks the registry: not within a turn of progress.
    ///
    /// # Errors
    /// [`Error::Invalid`] on another network, [`Error::Lost`] when the registry does not answer.
    pub fn subnet_ports(&self) -> Result<Vec<SubnetPort>> {
        let subnet = self.on_subnet()?;
        let members = self.registry.members();
        let members = members.map_err(|_| Error::Lost("the registry does not answer"))?;
        let ports: Vec<SubnetPort> =
            members.iter().filter_map(|member| self.subnet_port(member.slot)).collect();
        let guids = ports.iter().map(|port| (port.lid, port.guid)).collect();
        *subnet.memberships.guids.write().unwrap_or_else(PoisonError::into_inner) = guids;
        Ok(ports)
    }

    fn subnet_port(&self, slot: u16) -> Option<SubnetPort> {
        let directory = Reader::open(self.registry.directory(slot).ok()?).ok()?;
        directory.is_on_subnet().then(|| SubnetPort {
            lid: slot,
            guid: directory.guid(),
            memberships: directory.memberships(),
        })
    }

    /// Makes the port a member of a group, or changes what it is there.
    ///
    /// # Errors
    /// [`Error::Invalid`] on another network, [`Error::NoMemory`] at [`MAX_MEMBERSHIPS`], [`Error::System`] when the kernel
    /// refuses the group's address.
    pub fn join_group(&self, membership: Membership) -> Result<()> {
        let memberships = &self.on_subnet()?.memberships;
        let mut places = memberships.places();
        let known = |place: &Option<Membership>| {
            place.is_some_and(|membership_then| membership_then.mgid == membership.mgid)
        };
        let at = places.iter().position(known).or_else(|| places.iter().position(Option::is_none));
        let at = at.unwrap_or(places.len());
        if at == MAX_MEMBERSHIPS {
            return Err(Error::NoMemory("the port is in its most multicast groups"));
        }
        if membership.receives() {
            let address = group_of_lid(membership.mlid);
            self.endpoint().receive_at(address.into(), LOOPBACK).map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(0);
                Error::System(errno, "the multicast group's address is refused")
            })?;
        }
        if at == places.len() {
            places.push(None);
        }
        let before = places[at].replace(membership);
        self.directory().publish_membership(at, Some(&membership));
        self.leave_addresses(&places, before);
        self.thread.kick();
        Ok(())
    }

    /// Ends the port's membership of a group, if it is in it.
    ///
    /// # Errors
    /// [`Error::Invalid`] on another network.
    pub fn leave_group(&self, mgid: Gid) -> Result<()> {
        self.leave_groups_where(|membership| membership.mgid == mgid)
    }

    /// Ends all memberships of the port, as its loss of power would.
    ///
    /// # Errors
    /// [`Error::Invalid`] on another network.
    pub fn leave_groups(&self) -> Result<()> {
        self.leave_groups_where(|_| true)
    }

    fn leave_groups_where(&self, leaves: impl Fn(&Membership) -> bool) -> Result<()> {
        let mut places = self.on_subnet()?.memberships.places();
        for at in 0..places.len() {
            if places[at].as_ref().is_some_and(&leaves) {
                let before = places[at].take();
                self.directory().publish_membership(at, None);
                self.leave_addresses(&places, before);
            }
        }
        self.thread.kick();
        Ok(())
    }

    /// Receives no longer what was for a membership that ended, or became one to send only.
    fn leave_addresses(&self, places: &[Option<Membership>], before: Option<Membership>) {
        let Some(before) = before.filter(Membership::receives) else { return };
        let still = |m: &Membership| m.mlid == before.mlid && m.receives();
        if !places.iter().flatten().any(still) {
            self.endpoint().leave_address(group_of_lid(before.mlid).into());
        }
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
