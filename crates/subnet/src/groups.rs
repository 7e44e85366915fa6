//! MCMemberRecord (IBA 15.2.5.17): multicast groups, and how a port becomes and ceases to be a member.

use crate::administrator::{Status, status};
use crate::bytes::{be16, be32, get, put};
use crate::mask::{Component, EXACTLY, Template, bits, bytes};
use crate::view::{Groups, MTU, PACKET_LIFE, PKEY, RATE, View, guid_of};
use hca::subnet::{PREFIX, gid_of_guid};
use hca::{Membership, SubnetPort};

const MGID: usize = 0;
const PORT_GID: usize = 1;
const QKEY: usize = 2;
const MTU_SELECTOR: usize = 4;
const TRAFFIC_CLASS: usize = 6;
const PKEY_NAMED: usize = 7;
const RATE_SELECTOR: usize = 8;
const LIFE_SELECTOR: usize = 10;
const SL: usize = 12;
const FLOW_LABEL: usize = 13;
const JOIN_STATE: usize = 16;
/// What who makes a group must say (IBA 15.2.5.17.2).
const TO_CREATE: [usize; 5] = [QKEY, TRAFFIC_CLASS, PKEY_NAMED, SL, FLOW_LABEL];

const MTU_AT: usize = 38;
const RATE_AT: usize = 42;
const LIFE_AT: usize = 43;
const ROUTE_AT: usize = 44;
const STATE_AT: usize = 48;

/// What a group's packets have in common, and who joins must agree to.
const OF_GROUP: [(usize, Component); 6] = [
    (QKEY, bytes(32, 4)),
    (3, bytes(36, 2)),
    (TRAFFIC_CLASS, bytes(39, 1)),
    (SL, bits(ROUTE_AT * 8, 4)),
    (FLOW_LABEL, bits(ROUTE_AT * 8 + 4, 20)),
    (14, bits(ROUTE_AT * 8 + 24, 8)),
];
const OF_MEMBER: [(usize, Component); 4] = [
    (MGID, bytes(0, 16)),
    (PORT_GID, bytes(16, 16)),
    (15, bits(384, 4)),
    (JOIN_STATE, bits(388, 4)),
];
/// Partition without the bit for full membership.
const PARTITION: u16 = 0x7fff;

/// Bits of the join state: full member, non-member, send-only non-member, send-only full member.
const STATES: u8 = 0xf;
/// Those that keep a group alive, and may make one.
const FULL: u8 = 0b1001;

/// The membership of a port as a record.
fn record(port_gid: [u8; 16], membership: &Membership) -> Vec<u8> {
    let mut record = vec![0; 52];
    let of = membership;
    put(&mut record, 0, &of.mgid);
    put(&mut record, 16, &port_gid);
    put(&mut record, 32, &of.qkey.to_be_bytes());
    put(&mut record, 36, &of.mlid.to_be_bytes());
    put(&mut record, 38, &[EXACTLY << 6 | of.mtu, of.traffic_class]);
    put(&mut record, 40, &of.pkey.to_be_bytes());
    put(&mut record, 42, &[EXACTLY << 6 | of.rate, EXACTLY << 6 | of.packet_life]);
    let route = u32::from(of.sl) << 28 | of.flow_label << 8 | u32::from(of.hop_limit);
    put(&mut record, ROUTE_AT, &route.to_be_bytes());
    record[STATE_AT] = of.mgid[1] << 4 | of.join_state;
    record
}

/// Whether a request agrees with what a group is like.
fn agrees(wanted: &Template<'_>, group: &Membership) -> bool {
    let pkey = be16(wanted.record, 40);
    wanted.matches(&record([0; 16], group), &OF_GROUP)
        && (!wanted.names(PKEY_NAMED) || (pkey ^ group.pkey) & PARTITION == 0)
        && wanted.selects(MTU_SELECTOR, MTU_SELECTOR + 1, MTU_AT, group.mtu)
        && wanted.selects(RATE_SELECTOR, RATE_SELECTOR + 1, RATE_AT, group.rate)
        && wanted.selects(LIFE_SELECTOR, LIFE_SELECTOR + 1, LIFE_AT, group.packet_life)
}

impl View {
    /// Memberships that a request wants; to who is not trusted, groups, and nothing of their members (IBA 15.4.1.2).
    pub(crate) fn group_records(&self, wanted: &Template<'_>, trusted: bool) -> Vec<Vec<u8>> {
        let all: Vec<([u8; 16], Membership)> = if trusted {
            self.memberships().map(|(guid, of)| (gid_of_guid(guid), *of)).collect()
        } else {
            self.groups().into_iter().map(|group| ([0; 16], group)).collect()
        };
        let fitting = all.into_iter().filter(|(_, membership)| agrees(wanted, membership));
        let records = fitting.map(|(gid, membership)| record(gid, &membership));
        let known: Vec<_> =
            OF_MEMBER.into_iter().filter(|(number, _)| trusted || *number == MGID).collect();
        records.filter(|record| wanted.matches(record, &known)).collect()
    }
}

/// Which group a request of the own port's is about, and the join state in it.
fn request<'a>(
    view: &'a View,
    wanted: &Template<'_>,
) -> Result<(&'a SubnetPort, [u8; 16], u8), Status> {
    let state = get::<1>(wanted.record, STATE_AT)[0] & STATES;
    if !wanted.names(PORT_GID) || !wanted.names(JOIN_STATE) {
        return Err(status::TOO_FEW_COMPONENTS);
    }
    if state == 0 {
        return Err(status::INVALID);
    }
    let own = view.own_port().ok_or(status::INVALID_GID)?;
    let guid = guid_of(get(wanted.record, 16)).ok_or(status::INVALID_GID)?;
    if guid != own.guid {
        // A port speaks for itself.
        let other = view.ends().any(|(_, known)| known == guid);
        return Err(if other { status::DENIED } else { status::INVALID_GID });
    }
    let mgid = if wanted.names(MGID) { get(wanted.record, 0) } else { [0; 16] };
    Ok((own, mgid, state))
}

/// Set: the own port joins a group, or is more in it than it was. Gives the record of what it is then.
pub(crate) fn join(
    view: &View,
    groups: &mut dyn Groups,
    wanted: &Template<'_>,
    serial: u32,
) -> Result<Vec<u8>, Status> {
    let (own, asked, state) = request(view, wanted)?;
    let mgid = if asked == [0; 16] { new_mgid(view.own, serial) } else { asked };
    if mgid[0] != 0xff {
        return Err(status::INVALID);
    }
    let group = match view.group(mgid) {
        Some(group) if agrees(wanted, &group) => group,
        Some(_) => return Err(status::INVALID),
        None => create(view, wanted, mgid, state)?,
    };
    let before = own.memberships.iter().find(|membership| membership.mgid == mgid);
    let join_state = before.map_or(0, |membership| membership.join_state) | state;
    let membership = Membership { join_state, ..group };
    groups.join(membership).map_err(|_| status::NO_RESOURCES)?;
    Ok(record(gid_of_guid(own.guid), &membership))
}

/// A group of the subnet's making: transient, of this subnet, with the signature that managers use for theirs.
fn new_mgid(own: u16, serial: u32) -> [u8; 16] {
    let high = 0xff12_a01b_0000_0000 | PREFIX >> 48 << 16;
    let low = u64::from(own) << 32 | u64::from(serial);
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

/// A group that nobody is in yet.
fn create(
    view: &View,
    wanted: &Template<'_>,
    mgid: [u8; 16],
    state: u8,
) -> Result<Membership, Status> {
    if state & FULL == 0 {
        return Err(status::INVALID);
    }
    if !TO_CREATE.iter().all(|component| wanted.names(*component)) {
        return Err(status::TOO_FEW_COMPONENTS);
    }
    let record = wanted.record;
    // What is larger than the subnet's cannot be had, and what is smaller is taken only at its word.
    let chosen = |selector: usize, at: usize, most: u8| {
        let [byte] = get(record, at);
        let exactly = byte >> 6 == EXACTLY;
        let value = if exactly && wanted.names(selector) { byte & 0x3f } else { most };
        (value != 0 && wanted.selects(selector, selector + 1, at, value)).then_some(value)
    };
    let mtu = chosen(MTU_SELECTOR, MTU_AT, MTU).filter(|mtu| *mtu <= MTU);
    let route = be32(record, ROUTE_AT);
    let group = Membership {
        mgid,
        mlid: view.free_mlid(mgid).ok_or(status::NO_RESOURCES)?,
        join_state: 0,
        qkey: be32(record, 32),
        pkey: be16(record, 40),
        mtu: mtu.ok_or(status::INVALID)?,
        rate: chosen(RATE_SELECTOR, RATE_AT, RATE).ok_or(status::INVALID)?,
        packet_life: chosen(LIFE_SELECTOR, LIFE_AT, PACKET_LIFE).ok_or(status::INVALID)?,
        traffic_class: get::<1>(record, 39)[0],
        sl: (route >> 28) as u8,
        flow_label: route >> 8 & 0xf_ffff,
        hop_limit: route as u8,
    };
    if (group.pkey ^ PKEY) & PARTITION != 0 {
        return Err(status::INVALID);
    }
    Ok(group)
}

/// Delete: the own port leaves a group, or is less in it. Gives the record of what ends.
pub(crate) fn leave(
    view: &View,
    groups: &mut dyn Groups,
    wanted: &Template<'_>,
) -> Result<Vec<u8>, Status> {
    let (own, mgid, state) = request(view, wanted)?;
    if !wanted.names(MGID) {
        return Err(status::TOO_FEW_COMPONENTS);
    }
    let before = own.memberships.iter().find(|membership| membership.mgid == mgid);
    let before = before.filter(|membership| membership.join_state & state != 0);
    let before = *before.ok_or(status::INVALID)?;
    let left = before.join_state & !state;
    if left == 0 {
        groups.leave(mgid);
    } else {
        let after = Membership { join_state: left, ..before };
        groups.join(after).map_err(|_| status::NO_RESOURCES)?;
    }
    let ended = Membership { join_state: before.join_state & state, ..before };
    Ok(record(gid_of_guid(own.guid), &ended))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::view;

    /// Puts memberships into the own port of a view.
    struct Own<'a>(&'a mut View);

    impl Groups for Own<'_> {
        fn join(&mut self, membership: Membership) -> Result<(), crate::Refused> {
            self.leave(membership.mgid);
            self.0.ports[0].memberships.push(membership);
            Ok(())
        }

        fn leave(&mut self, mgid: [u8; 16]) {
            self.0.ports[0].memberships.retain(|membership| membership.mgid != mgid);
        }
    }

    const BROADCAST: [u8; 16] =
        [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    const OWN: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x70];
    const SIMPLE: u64 = 1 << MGID | 1 << PORT_GID | 1 << JOIN_STATE;
    const WHOLE: u64 =
        SIMPLE | 1 << QKEY | 1 << TRAFFIC_CLASS | 1 << PKEY_NAMED | 1 << SL | 1 << FLOW_LABEL;

    fn asks(mgid: [u8; 16], state: u8, qkey: u32) -> Vec<u8> {
        let mut asked = vec![0; 52];
        put(&mut asked, 0, &mgid);
        put(&mut asked, 16, &OWN);
        put(&mut asked, 32, &qkey.to_be_bytes());
        put(&mut asked, 40, &PKEY.to_be_bytes());
        asked[STATE_AT] = state;
        asked
    }

    fn joins(view: &mut View, mask: u64, asked: &[u8]) -> Result<Vec<u8>, Status> {
        let now = view.clone();
        join(&now, &mut Own(view), &Template { mask, record: asked }, 1)
    }

    #[test]
    fn the_group_of_ipoib_is_joined_by_name_alone_and_left() {
        let mut view = view();
        let joined = joins(&mut view, SIMPLE, &asks(BROADCAST, 1, 0)).unwrap();
        assert_eq!((be32(&joined, 32), be16(&joined, 36)), (0x0b1b, 0xc000));
        assert_eq!(joined[STATE_AT] & STATES, 1);
        assert_eq!(joined[16..32], OWN);
        let asked = asks(BROADCAST, 1, 0);
        let wanted = Template { mask: SIMPLE, record: &asked };
        let now = view.clone();
        leave(&now, &mut Own(&mut view), &wanted).unwrap();
        let now = view.clone();
        assert_eq!(leave(&now, &mut Own(&mut view), &wanted), Err(status::INVALID));
    }

    #[test]
    fn a_group_is_made_by_its_first_member_and_agreed_to_by_others() {
        let mut view = view();
        let mut mgid = BROADCAST;
        mgid[15] = 1;
        let few = joins(&mut view, SIMPLE, &asks(mgid, 1, 5));
        assert_eq!(few, Err(status::TOO_FEW_COMPONENTS));
        assert_eq!(joins(&mut view, WHOLE, &asks(mgid, 2, 5)), Err(status::INVALID), "no member");
        let made = joins(&mut view, WHOLE, &asks(mgid, 1, 5)).unwrap();
        assert!(be16(&made, 36) > 0xc000);
        assert_eq!(joins(&mut view, WHOLE, &asks(mgid, 4, 6)), Err(status::INVALID), "Q_Key");
        let more = joins(&mut view, WHOLE, &asks(mgid, 4, 5)).unwrap();
        assert_eq!((more[STATE_AT] & STATES, be16(&more, 36)), (5, be16(&made, 36)));
    }

    #[test]
    fn a_port_joins_for_itself_only() {
        let mut view = view();
        let mut asked = asks(BROADCAST, 1, 0);
        asked[31] = 0x90;
        assert_eq!(joins(&mut view, SIMPLE, &asked), Err(status::DENIED));
        asked[31] = 0x91;
        assert_eq!(joins(&mut view, SIMPLE, &asked), Err(status::INVALID_GID));
        let nameless = joins(&mut view, WHOLE, &asks([0; 16], 1, 5)).unwrap();
        assert_eq!(nameless[..4], [0xff, 0x12, 0xa0, 0x1b]);
    }

    #[test]
    fn members_are_told_to_the_trusted_alone() {
        let mut view = view();
        joins(&mut view, SIMPLE, &asks(BROADCAST, 1, 0)).unwrap();
        let all = Template { mask: 0, record: &[] };
        let groups = view.group_records(&all, false);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0][16..32], [0; 16]);
        assert_eq!(view.group_records(&all, true)[0][16..32], OWN);
    }
}
