//! Multicast groups: on RoCE a group is an IP group, and its GID follows from the address.

use crate::addr::{Addr, gid_of};
use crate::cma::{Cma, Membership};
use crate::error::Error;
use crate::event::{AddressVector, DatagramParam, Ece, Event, EventKind, Param};
use crate::id::{HOP_LIMIT, IdState, Key};
use std::net::IpAddr;

/// Queue pair number of all members (IBA 10.5.1).
const MULTICAST_QPN: u32 = 0xff_ffff;
/// LID that the kernel gives RoCE groups (`cma_iboe_join_multicast`).
const MULTICAST_LID: u16 = 0xc000;

impl Cma {
    /// Joins the group of `addr` for the program's number `uid`; answers the membership's handle.
    /// The event follows. Packets come once the queue pair is attached to the group, which
    /// librdmacm does on the event.
    ///
    /// # Errors
    /// EINVAL when the id has no address yet, is connected, or is not for datagrams.
    pub fn join(&mut self, key: Key, addr: &Addr, uid: u64) -> Result<u32, Error> {
        let id = self.id_mut(key)?;
        let ready =
            matches!(id.state, IdState::Bound | IdState::AddrResolved | IdState::RouteResolved);
        if !ready || !id.is_datagram() || !id.choose_qkey(0) {
            return Err(Error::INVAL);
        }
        let local = id.local.ok_or(Error::NODEV)?;
        let group = addr.ip().ok_or(Error::INVAL)?;
        let dgid = match group {
            ip if ip.is_unspecified() => [0; 16],
            IpAddr::V4(ip) => gid_of(ip.into()),
            IpAddr::V6(ip) => ip.octets(),
        };
        let ah = AddressVector {
            dgid,
            sgid_index: local.gid_index,
            flow_label: 0,
            hop_limit: HOP_LIMIT,
            traffic_class: id.traffic_class.unwrap_or(0),
            dlid: MULTICAST_LID,
        };
        let param =
            DatagramParam { qp_num: MULTICAST_QPN, qkey: id.qkey, ah, private_data: Vec::new() };
        let mut handle = 0;
        while self.memberships.contains_key(&handle) {
            handle += 1;
        }
        self.memberships.insert(handle, Membership { id: key, uid, events_reported: 0 });
        self.queue(Event {
            kind: EventKind::MulticastJoin,
            status: 0,
            param: Param::Datagram(Box::new(param)),
            ece: Ece::default(),
            id: key,
            request: None,
            membership: Some(handle),
        });
        Ok(handle)
    }

    /// Leaves a group; answers how many events of the membership were delivered.
    ///
    /// # Errors
    /// ENOENT for no such membership, EINVAL for one of another channel.
    pub fn leave(&mut self, channel: crate::ChannelId, handle: u32) -> Result<u32, Error> {
        let membership = self.memberships.get(&handle).ok_or(Error::NOENT)?;
        if self.id(membership.id)?.channel != channel {
            return Err(Error::INVAL);
        }
        let reported = membership.events_reported;
        self.memberships.remove(&handle);
        self.forget_membership(handle);
        Ok(reported)
    }
}
