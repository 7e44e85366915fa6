//! A port's place in the multicast groups of its subnet, as the subnet's manager decides it, and
//! the ports that the subnet has. Packets name a group by its LID alone, so ports join one after
//! another.

use crate::adapter::directory::Reader;
use crate::adapter::membership::{MAX_MEMBERSHIPS, Membership};
use crate::fabric::management::Management;
use crate::fabric::subnet::group_of_lid;
use link::LOOPBACK;
use registry::{CLAIM_JOINING, Client};
use transport::values::Gid;
use transport::{Error, Result};

/// A port of the subnet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubnetPort {
    /// LID of the port.
    pub lid: u16,
    /// GUID of the port and of its node.
    pub guid: u64,
    /// The groups it is in.
    pub memberships: Vec<Membership>,
}

/// The claim of a port that joins a group; it ends with this, however joining ends.
struct Joining<'a>(Option<&'a Client>);

impl Joining<'_> {
    /// Gives the claim back. Answers whether the port had it all the while: a process that stood
    /// still for long has lost it.
    fn end(mut self) -> bool {
        self.0.take().is_some_and(|registry| registry.release(CLAIM_JOINING, 0))
    }
}

impl Drop for Joining<'_> {
    fn drop(&mut self) {
        self.0.inspect(|registry| _ = registry.release(CLAIM_JOINING, 0));
    }
}

impl Management<'_> {
    /// The subnet's ports, by LID, this one included. Asks the registry: not within a turn of
    /// progress.
    ///
    /// # Errors
    /// [`Error::Lost`] when the registry does not answer.
    pub fn ports(&self) -> Result<Vec<SubnetPort>> {
        let members = self.adapter.registry.members();
        let members = members.map_err(|_| Error::Lost("the registry does not answer"))?;
        let ports: Vec<SubnetPort> =
            members.iter().filter_map(|member| self.subnet_port(member.slot)).collect();
        let guids = ports.iter().map(|port| (port.lid, port.guid)).collect();
        self.subnet.memberships.know(guids);
        Ok(ports)
    }

    fn subnet_port(&self, slot: u16) -> Option<SubnetPort> {
        let directory = Reader::open(self.adapter.registry.directory(slot).ok()?).ok()?;
        directory.is_on_subnet().then(|| SubnetPort {
            lid: slot,
            guid: directory.guid(),
            memberships: directory.memberships(),
        })
    }

    /// Runs `join` on the subnet's ports while no other port joins a group in this way, so that no
    /// two groups get one LID. `None` where another is at it, or the registry does not answer, or
    /// another was at it meanwhile because this process stood still; then the port is in the groups
    /// that it was in before.
    pub fn joining<T>(&self, join: impl FnOnce(Vec<SubnetPort>) -> T) -> Option<T> {
        self.adapter.registry.claim(self.adapter.slot(), CLAIM_JOINING, 0).ok()?;
        let claim = Joining(Some(&self.adapter.registry));
        let ports = self.ports().ok()?;
        let before = self.memberships();
        let joined = join(ports);
        if claim.end() {
            return Some(joined);
        }
        self.take_back(&before);
        None
    }

    fn memberships(&self) -> Vec<Membership> {
        self.subnet.memberships.places().iter().flatten().copied().collect()
    }

    /// Leaves the groups that were joined since the port was in those of `before` alone, and is in
    /// the others as it was.
    fn take_back(&self, before: &[Membership]) {
        for now in self.memberships() {
            match before.iter().find(|then| then.mgid == now.mgid) {
                None => self.leave_group(now.mgid),
                Some(then) if *then != now => _ = self.join_group(*then),
                Some(_) => {}
            }
        }
    }

    /// Makes the port a member of a group, or changes what it is there.
    ///
    /// # Errors
    /// [`Error::NoMemory`] at [`MAX_MEMBERSHIPS`], [`Error::System`] when the kernel refuses the
    /// group's address.
    pub fn join_group(&self, membership: Membership) -> Result<()> {
        let memberships = &self.subnet.memberships;
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
            self.adapter.endpoint().receive_at(address.into(), LOOPBACK).map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(0);
                Error::System(errno, "the multicast group's address is refused")
            })?;
        }
        if at == places.len() {
            places.push(None);
        }
        let before = places[at].replace(membership);
        self.adapter.directory().publish_membership(at, Some(&membership));
        self.leave_addresses(&places, before);
        self.adapter.thread.kick();
        Ok(())
    }

    /// Ends the port's membership of a group, if it is in it.
    pub fn leave_group(&self, mgid: Gid) {
        self.leave_groups_where(|membership| membership.mgid == mgid);
    }

    /// Ends all memberships of the port, as its loss of power would.
    pub fn leave_groups(&self) {
        self.leave_groups_where(|_| true);
    }

    fn leave_groups_where(&self, leaves: impl Fn(&Membership) -> bool) {
        let mut places = self.subnet.memberships.places();
        for at in 0..places.len() {
            if places[at].as_ref().is_some_and(&leaves) {
                let before = places[at].take();
                self.adapter.directory().publish_membership(at, None);
                self.leave_addresses(&places, before);
            }
        }
        self.adapter.thread.kick();
    }

    /// Receives no longer what was for a membership that ended, or became one to send only.
    fn leave_addresses(&self, places: &[Option<Membership>], before: Option<Membership>) {
        let Some(before) = before.filter(Membership::receives) else { return };
        let still = |m: &Membership| m.mlid == before.mlid && m.receives();
        if !places.iter().flatten().any(still) {
            self.adapter.endpoint().leave_address(group_of_lid(before.mlid).into());
        }
    }
}
