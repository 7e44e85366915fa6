//! The subnet as a port's manager sees it: what the answers are made from.

use hca::subnet::{FIRST_MULTICAST_LID, MANAGER_LID, PERMISSIVE_LID, PREFIX};
use hca::{DEFAULT_PKEY, Membership, SubnetPort};

/// The manager's GUID, and the switch's: the organisation part of our hardware addresses, then its
/// LID.
pub(crate) const MANAGER_GUID: u64 = 0x0250_444d_0000_0000 | MANAGER_LID as u64;
/// Code of a path MTU of 4096 bytes.
pub(crate) const MTU: u8 = 5;
/// Code of 400 Gb/s (IBA 15.2.5.16).
pub(crate) const RATE: u8 = 21;
/// 4.096 µs * 2^14, some 67 ms: guests are emulated.
pub(crate) const PACKET_LIFE: u8 = 14;
/// The group that every IPoIB interface is in (RFC 4391).
const IPOIB_BROADCAST: [u8; 16] =
    [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
/// The Q_Key of that group.
const IPOIB_QKEY: u32 = 0x0b1b;

/// What is there at one moment.
#[derive(Clone, Debug)]
pub struct View {
    /// LID of the port whose manager looks.
    pub own: u16,
    /// All ports, by LID, that one included. Those of the switch have their numbers, from 1, in
    /// this order.
    pub ports: Vec<SubnetPort>,
}

/// Why a membership is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Refused;

/// The own port's memberships.
pub trait Groups {
    /// Makes it a member, or changes what it is in the group.
    ///
    /// # Errors
    /// [`Refused`] for want of room.
    fn join(&mut self, membership: Membership) -> Result<(), Refused>;
    /// Ends its membership.
    fn leave(&mut self, mgid: [u8; 16]);
}

impl View {
    pub(crate) fn own_port(&self) -> Option<&SubnetPort> {
        self.port_at(self.own)
    }

    pub(crate) fn port_at(&self, lid: u16) -> Option<&SubnetPort> {
        self.ports.iter().find(|port| port.lid == lid)
    }

    /// Every unicast LID with the GUID behind it.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (u16, u64)> + Clone {
        let ports = self.ports.iter().map(|port| (port.lid, port.guid));
        std::iter::once((MANAGER_LID, MANAGER_GUID)).chain(ports)
    }

    /// All memberships, with the GUID of the port.
    pub(crate) fn memberships(&self) -> impl Iterator<Item = (u64, &Membership)> {
        self.ports.iter().flat_map(|port| port.memberships.iter().map(|m| (port.guid, m)))
    }

    /// What a group is like; nobody is a member.
    pub(crate) fn group(&self, mgid: [u8; 16]) -> Option<Membership> {
        self.groups().into_iter().find(|group| group.mgid == mgid)
    }

    /// Every group once; the one of IPoIB is there without members.
    pub(crate) fn groups(&self) -> Vec<Membership> {
        let mut groups = vec![ipoib_broadcast()];
        for (_, membership) in self.memberships() {
            if groups.iter().all(|group| group.mgid != membership.mgid) {
                groups.push(Membership { join_state: 0, ..*membership });
            }
        }
        groups
    }

    /// The LID for a new group. Made from its GID, so that a group which ends and is made again
    /// mostly has the one that it had.
    pub(crate) fn free_mlid(&self, mgid: [u8; 16]) -> Option<u16> {
        const LIDS: u16 = PERMISSIVE_LID - FIRST_MULTICAST_LID;
        let taken: Vec<u16> = self.groups().iter().map(|group| group.mlid).collect();
        // FNV-1a.
        let hash = mgid.iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
        let first = (hash % u32::from(LIDS)) as u16;
        let all = (0..LIDS).map(|step| {
            let place = (u32::from(first) + u32::from(step)) % u32::from(LIDS);
            FIRST_MULTICAST_LID + place as u16
        });
        all.into_iter().find(|mlid| !taken.contains(mlid))
    }
}

pub(crate) fn ipoib_broadcast() -> Membership {
    Membership {
        mgid: IPOIB_BROADCAST,
        mlid: FIRST_MULTICAST_LID,
        join_state: 0,
        qkey: IPOIB_QKEY,
        pkey: DEFAULT_PKEY,
        mtu: MTU,
        rate: RATE,
        packet_life: PACKET_LIFE,
        traffic_class: 0,
        sl: 0,
        flow_label: 0,
        hop_limit: 0,
    }
}

/// The GUID in a GID of this subnet.
pub(crate) fn guid_of(gid: [u8; 16]) -> Option<u64> {
    let gid = u128::from_be_bytes(gid);
    ((gid >> 64) as u64 == PREFIX).then_some(gid as u64)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn view() -> View {
        let port = |lid, guid| SubnetPort { lid, guid, memberships: Vec::new() };
        View { own: 7, ports: vec![port(7, 0x70), port(9, 0x90)] }
    }

    #[test]
    fn a_group_is_made_at_the_lid_of_its_gid_and_no_two_groups_share_one() {
        let mut view = view();
        let (one, other) = ([0xff; 16], [0xfe; 16]);
        let mlid = view.free_mlid(one).unwrap();
        assert_eq!(view.free_mlid(one), Some(mlid));
        assert!(mlid >= FIRST_MULTICAST_LID);
        let membership = Membership { mgid: other, mlid, join_state: 1, ..ipoib_broadcast() };
        view.ports[1].memberships.push(membership);
        let next = view.free_mlid(one).unwrap();
        assert_ne!(next, mlid);
        assert_eq!(view.groups().len(), 2);
    }

    #[test]
    fn guids_are_those_of_this_subnet() {
        assert_eq!(guid_of(hca::subnet::gid_of_guid(5)), Some(5));
        assert_eq!(guid_of([0; 16]), None);
    }
}
