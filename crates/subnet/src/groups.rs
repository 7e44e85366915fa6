//! MCMemberRecord (IBA 15.2.5.17): multicast groups, and how a port becomes and ceases to be a
//! member.

use crate::administrator::Status;
use crate::view::{Groups, MTU, PACKET_LIFE, RATE, View, guid_of};
use hca::subnet::{PREFIX, gid_of_guid};
use hca::{DEFAULT_PKEY, Membership, SubnetPort};
use wire::is_same_partition;
use wire::mad::sa::{Component, McMemberRecord, Template, status};

/// What who makes a group must say (IBA 15.2.5.17.2).
const TO_CREATE: [Component; 5] = [
    McMemberRecord::QKEY,
    McMemberRecord::TRAFFIC_CLASS,
    McMemberRecord::PKEY,
    McMemberRecord::SL,
    McMemberRecord::FLOW_LABEL,
];
/// What a group's packets have in common, and who joins must agree to.
const OF_GROUP: [Component; 6] = [
    McMemberRecord::QKEY,
    McMemberRecord::MLID,
    McMemberRecord::TRAFFIC_CLASS,
    McMemberRecord::SL,
    McMemberRecord::FLOW_LABEL,
    McMemberRecord::HOP_LIMIT,
];
/// What a request may ask of members.
const OF_MEMBER: [Component; 4] = [
    McMemberRecord::MGID,
    McMemberRecord::PORT_GID,
    McMemberRecord::SCOPE,
    McMemberRecord::JOIN_STATE,
];
/// Join states that keep a group alive, and may make one: both kinds of full members.
const FULL: u8 = 0b1001;

/// The membership of a port as a record.
fn record(port_gid: [u8; 16], membership: &Membership) -> McMemberRecord {
    let of = membership;
    McMemberRecord {
        mgid: of.mgid,
        port_gid,
        qkey: of.qkey,
        mlid: of.mlid,
        mtu: of.mtu,
        traffic_class: of.traffic_class,
        pkey: of.pkey,
        rate: of.rate,
        packet_life: of.packet_life,
        sl: of.sl,
        flow_label: of.flow_label,
        hop_limit: of.hop_limit,
        scope: of.mgid[1] & 0xf,
        join_state: of.join_state,
    }
}

/// Whether a request agrees with what a group is like.
fn agrees(wanted: &Template<'_>, group: &Membership) -> bool {
    let asked = McMemberRecord::parse(wanted.record);
    wanted.matches(&record([0; 16], group).emit(), &OF_GROUP)
        && (!wanted.names(McMemberRecord::PKEY) || is_same_partition(asked.pkey, group.pkey))
        && wanted.selects(McMemberRecord::MTU, group.mtu)
        && wanted.selects(McMemberRecord::RATE, group.rate)
        && wanted.selects(McMemberRecord::PACKET_LIFE, group.packet_life)
}

impl View {
    /// Memberships that a request wants; to who is not trusted, groups, and nothing of their
    /// members (IBA 15.4.1.2).
    pub(crate) fn group_records(&self, wanted: &Template<'_>, trusted: bool) -> Vec<Vec<u8>> {
        let all: Vec<([u8; 16], Membership)> = if trusted {
            self.memberships().map(|(guid, of)| (gid_of_guid(guid), *of)).collect()
        } else {
            self.groups().into_iter().map(|group| ([0; 16], group)).collect()
        };
        let fitting = all.into_iter().filter(|(_, membership)| agrees(wanted, membership));
        let records = fitting.map(|(gid, membership)| record(gid, &membership).emit().to_vec());
        let known = if trusted { &OF_MEMBER[..] } else { &[McMemberRecord::MGID] };
        records.filter(|record| wanted.matches(record, known)).collect()
    }
}

/// Which group a request of the own port's is about, and the join state in it.
fn request<'a>(
    view: &'a View,
    wanted: &Template<'_>,
) -> Result<(&'a SubnetPort, [u8; 16], u8), Status> {
    let asked = McMemberRecord::parse(wanted.record);
    let state = asked.join_state;
    if !wanted.names(McMemberRecord::PORT_GID) || !wanted.names(McMemberRecord::JOIN_STATE) {
        return Err(status::TOO_FEW_COMPONENTS);
    }
    if state == 0 {
        return Err(status::INVALID);
    }
    let own = view.own_port().ok_or(status::INVALID_GID)?;
    let guid = guid_of(asked.port_gid).ok_or(status::INVALID_GID)?;
    if guid != own.guid {
        // A port speaks for itself.
        let other = view.ends().any(|(_, known)| known == guid);
        return Err(if other { status::DENIED } else { status::INVALID_GID });
    }
    let mgid = if wanted.names(McMemberRecord::MGID) { asked.mgid } else { [0; 16] };
    Ok((own, mgid, state))
}

/// Set: the own port joins a group, or is more in it than it was. Gives the record of what it is
/// then.
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
    Ok(record(gid_of_guid(own.guid), &membership).emit().to_vec())
}

/// A group of the subnet's making: transient, of this subnet, with the signature that managers use
/// for theirs.
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
    // What is larger than the subnet's cannot be had, and what is smaller is taken only at its
    // word.
    let chosen = |selected: Component, most: u8| {
        let value = wanted.exactly(selected).unwrap_or(most);
        (value != 0 && wanted.selects(selected, value)).then_some(value)
    };
    let mtu = chosen(McMemberRecord::MTU, MTU).filter(|mtu| *mtu <= MTU);
    let asked = McMemberRecord::parse(wanted.record);
    let group = Membership {
        mgid,
        mlid: view.free_mlid(mgid).ok_or(status::NO_RESOURCES)?,
        join_state: 0,
        qkey: asked.qkey,
        pkey: asked.pkey,
        mtu: mtu.ok_or(status::INVALID)?,
        rate: chosen(McMemberRecord::RATE, RATE).ok_or(status::INVALID)?,
        packet_life: chosen(McMemberRecord::PACKET_LIFE, PACKET_LIFE).ok_or(status::INVALID)?,
        traffic_class: asked.traffic_class,
        sl: asked.sl,
        flow_label: asked.flow_label,
        hop_limit: asked.hop_limit,
    };
    if !is_same_partition(group.pkey, DEFAULT_PKEY) {
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
    if !wanted.names(McMemberRecord::MGID) {
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
    Ok(record(gid_of_guid(own.guid), &ended).emit().to_vec())
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
    /// MGID, PortGID, join state.
    const SIMPLE: u64 = 1 << 0 | 1 << 1 | 1 << 16;
    /// Q_Key, traffic class, P_Key, service level and flow label, too.
    const WHOLE: u64 = SIMPLE | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 12 | 1 << 13;

    fn asks(mgid: [u8; 16], join_state: u8, qkey: u32) -> McMemberRecord {
        let pkey = DEFAULT_PKEY;
        let nothing = McMemberRecord::parse(&[]);
        McMemberRecord { mgid, port_gid: OWN, qkey, pkey, join_state, ..nothing }
    }

    fn joins(view: &mut View, mask: u64, asked: &McMemberRecord) -> Result<McMemberRecord, Status> {
        let now = view.clone();
        let record = asked.emit();
        let joined = join(&now, &mut Own(view), &Template { mask, record: &record }, 1);
        joined.map(|record| McMemberRecord::parse(&record))
    }

    #[test]
    fn the_group_of_ipoib_is_joined_by_name_alone_and_left() {
        let mut view = view();
        let joined = joins(&mut view, SIMPLE, &asks(BROADCAST, 1, 0)).unwrap();
        assert_eq!((joined.qkey, joined.mlid), (0x0b1b, 0xc000));
        assert_eq!((joined.join_state, joined.port_gid), (1, OWN));
        let asked = asks(BROADCAST, 1, 0).emit();
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
        assert!(made.mlid > 0xc000);
        assert_eq!(joins(&mut view, WHOLE, &asks(mgid, 4, 6)), Err(status::INVALID), "Q_Key");
        let more = joins(&mut view, WHOLE, &asks(mgid, 4, 5)).unwrap();
        assert_eq!((more.join_state, more.mlid), (5, made.mlid));
    }

    #[test]
    fn a_port_joins_for_itself_only() {
        let mut view = view();
        let mut asked = asks(BROADCAST, 1, 0);
        asked.port_gid[15] = 0x90;
        assert_eq!(joins(&mut view, SIMPLE, &asked), Err(status::DENIED));
        asked.port_gid[15] = 0x91;
        assert_eq!(joins(&mut view, SIMPLE, &asked), Err(status::INVALID_GID));
        let nameless = joins(&mut view, WHOLE, &asks([0; 16], 1, 5)).unwrap();
        assert_eq!(nameless.mgid[..4], [0xff, 0x12, 0xa0, 0x1b]);
    }

    #[test]
    fn only_the_trusted_see_members() {
        let mut view = view();
        joins(&mut view, SIMPLE, &asks(BROADCAST, 1, 0)).unwrap();
        let all = Template { mask: 0, record: &[] };
        let groups = view.group_records(&all, false);
        assert_eq!(groups.len(), 1);
        assert_eq!(McMemberRecord::parse(&groups[0]).port_gid, [0; 16]);
        let members = view.group_records(&all, true);
        assert_eq!(McMemberRecord::parse(&members[0]).port_gid, OWN);
    }
}
