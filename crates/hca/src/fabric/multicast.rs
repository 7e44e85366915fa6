//! Multicast groups: which datagram QPs take what is sent to a group (IBA 10.5).
//!
//! A group is an IP multicast address. While it has members the receive sockets are in it on every
//! interface that has a GID, as a NIC's filter would be open; the kernel hands each process of the
//! host its own copy. The interfaces are those at the first attach. An Ethernet floods every group
//! ([`link::Lan`]); there only the sockets of the host's network join. On an InfiniBand subnet a
//! group is a GID, and its manager decides what reaches the port (`membership.rs`).

use crate::adapter::Adapter;
use crate::adapter::network::Attached;
use crate::objects::qp::Qp;
use engine_thread::{read, write};
use link::ip_of_gid;
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use transport::values::QpType;
use transport::{Error, Result};

/// Destination QP number of a multicast packet.
pub const MULTICAST_QPN: u32 = 0xff_ffff;
/// Groups of a device, as Linux's rxe has them.
pub const MAX_GROUPS: usize = 8192;
/// Members of one group.
pub const MAX_MEMBERS: usize = 56;

/// A group with members.
struct Group {
    members: Vec<Arc<Qp>>,
    /// Interfaces on which the sockets joined.
    joined: Vec<u32>,
}

/// The groups of a device. Taken for reading by whoever dispatches; a leaf lock but for the joins
/// themselves.
#[derive(Default)]
pub(crate) struct Groups(RwLock<HashMap<IpAddr, Group>>);

impl Groups {
    fn read(&self) -> RwLockReadGuard<'_, HashMap<IpAddr, Group>> {
        read(&self.0)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<IpAddr, Group>> {
        write(&self.0)
    }

    /// Runs `call` on each group.
    pub(crate) fn each(&self, call: impl FnMut(IpAddr)) {
        let groups: Vec<IpAddr> = self.read().keys().copied().collect();
        groups.into_iter().for_each(call);
    }

    /// Members of the group that `dst` is.
    pub(crate) fn members(&self, dst: IpAddr) -> Vec<Arc<Qp>> {
        self.read().get(&dst).map_or_else(Vec::new, |group| group.members.clone())
    }
}

fn group_of(qp: &Qp, gid: [u8; 16]) -> Result<IpAddr> {
    if qp.init().qp_type != QpType::Ud {
        return Err(Error::Invalid("only datagram QPs take multicast"));
    }
    let group = ip_of_gid(gid);
    if !group.is_multicast() {
        return Err(Error::Invalid("the GID is no multicast address"));
    }
    Ok(group)
}

/// Receives what is sent to a group where the host has an address of an Ethernet's port.
pub(crate) fn take_group(adapter: &Adapter, group: IpAddr) {
    for own in adapter.endpoint().own_addresses().iter() {
        if !own.ip().is_multicast() && own.ip().is_ipv4() == group.is_ipv4() {
            // Without it the group's members on the host are not heard.
            let _ = adapter.endpoint().receive_at(group, own.ifindex());
        }
    }
    adapter.thread.kick();
}

/// The groups of a device: see [`Device::multicast`](crate::Device::multicast).
pub struct Multicast<'a> {
    pub(crate) adapter: &'a Adapter,
    pub(crate) groups: &'a Groups,
}

impl Multicast<'_> {
    /// Lets `qp` take what is sent to the group that `gid` names. One that does already is left as
    /// it is.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another service or an address that is no group, [`Error::NoMemory`]
    /// at [`MAX_GROUPS`] or [`MAX_MEMBERS`], [`Error::System`] when the sockets cannot join on any
    /// interface.
    pub fn attach(&self, qp: &Arc<Qp>, gid: [u8; 16]) -> Result<()> {
        self.adapter.alive()?;
        let ip = group_of(qp, gid)?;
        let interfaces = match self.adapter.network {
            // Its manager decides what reaches the port.
            Attached::Subnet(_) => None,
            Attached::Host | Attached::Ethernet(_) => Some(self.interfaces(ip.is_ipv4())?),
        };
        let mut groups = self.groups.write();
        let known = groups.len();
        let group = match groups.entry(ip) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(_) if known >= MAX_GROUPS => {
                return Err(Error::NoMemory("the device has its most multicast groups"));
            }
            Entry::Vacant(entry) => {
                let joined = interfaces.map(|interfaces| self.join(ip, &interfaces));
                let joined = joined.transpose()?.unwrap_or_default();
                if let Attached::Ethernet(_) = self.adapter.network {
                    take_group(self.adapter, ip);
                }
                entry.insert(Group { members: Vec::new(), joined })
            }
        };
        if group.members.iter().any(|member| member.number() == qp.number()) {
            return Ok(());
        }
        if group.members.len() >= MAX_MEMBERS {
            return Err(Error::NoMemory("the multicast group has its most members"));
        }
        group.members.push(qp.clone());
        Ok(())
    }

    /// Ends what [`attach`](Multicast::attach) began.
    ///
    /// # Errors
    /// [`Error::Invalid`] when `qp` is not attached to the group.
    pub fn detach(&self, qp: &Arc<Qp>, gid: [u8; 16]) -> Result<()> {
        let ip = group_of(qp, gid)?;
        let mut groups = self.groups.write();
        let absent = Error::Invalid("the QP is not attached to the group");
        let group = groups.get_mut(&ip).ok_or(absent)?;
        let at = group.members.iter().position(|m| m.number() == qp.number()).ok_or(absent)?;
        group.members.swap_remove(at);
        if group.members.is_empty()
            && let Some(group) = groups.remove(&ip)
        {
            self.leave(ip, &group);
        }
        Ok(())
    }

    /// Whether `qp` is attached to a group.
    pub fn has(&self, qp: &Qp) -> bool {
        let number = qp.number();
        self.groups.read().values().any(|g| g.members.iter().any(|m| m.number() == number))
    }

    /// Takes the QP with `number` out of every group.
    pub(crate) fn forget(&self, number: u32) {
        if self.groups.read().is_empty() {
            return;
        }
        self.groups.write().retain(|ip, group| {
            group.members.retain(|member| member.number() != number);
            let stays = !group.members.is_empty();
            if !stays {
                self.leave(*ip, group);
            }
            stays
        });
    }

    /// Interfaces with a GID of the family.
    fn interfaces(&self, v4: bool) -> Result<BTreeSet<u32>> {
        let gids = self.adapter.gids(1)?;
        Ok(gids.iter().filter(|entry| entry.ip.is_ipv4() == v4).map(|e| e.ifindex).collect())
    }

    fn join(&self, group: IpAddr, interfaces: &BTreeSet<u32>) -> Result<Vec<u32>> {
        let mut refused = rustix::io::Errno::NODEV.raw_os_error();
        let mut joined = Vec::new();
        for &ifindex in interfaces {
            match self.adapter.endpoint().join(group, ifindex) {
                Ok(()) => joined.push(ifindex),
                Err(error) => refused = error.raw_os_error().unwrap_or(refused),
            }
        }
        if joined.is_empty() {
            return Err(Error::System(refused, "no interface takes the multicast group"));
        }
        Ok(joined)
    }

    fn leave(&self, ip: IpAddr, group: &Group) {
        self.adapter.endpoint().leave_address(ip);
        for &ifindex in &group.joined {
            // The interface may be gone, and its membership with it.
            let _ = self.adapter.endpoint().leave(ip, ifindex);
        }
    }
}
