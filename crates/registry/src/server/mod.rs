//! The registry's rules: slots, sockets, publications and claims, without I/O.
//!
//! Requests with descriptors come in with the number of their connection, replies with descriptors
//! go out; the system is behind [`Kernel`]. Everything a connection brought ends with it. Slots are
//! handed out in turn from a random start, so that a freed one comes up again only after all
//! others, and never while its deed, a socket that the member holds, still exists.

mod entries;
mod group;
pub(crate) mod kernel;
#[cfg(test)]
mod tests;

use crate::Error;
use crate::proto::{Identity, MAX_NAME, PAGE, Reply, Request, Row, VERSION};
use crate::steer::{self, SLOTS};
use entries::{ClaimName, Entries};
use group::Group;
use kernel::{Family, Held, Kernel};
use std::collections::{BTreeMap, BTreeSet, HashMap};

pub use entries::{CLAIM_JOINING, CLAIM_PORT, CLAIM_SERVICE, JOINING_LEASE};

/// Number of a connection; never used twice.
pub(crate) type ConnId = u64;

struct Member<F> {
    conn: ConnId,
    pid: i32,
    uid: u32,
    joined_at: u64,
    who: Identity,
    directory: F,
}

struct Peer {
    pid: i32,
    uid: u32,
    greeted: bool,
}

/// A reply and the descriptors that travel with it.
pub(crate) type Answer<F> = (Reply, Vec<F>);

/// The registry.
pub(crate) struct Server<K: Kernel> {
    kernel: K,
    peers: HashMap<ConnId, Peer>,
    members: BTreeMap<u16, Member<K::Fd>>,
    entries: Entries<K::Fd>,
    groups: [Group<K::Fd>; 2],
    next_slot: u16,
    /// Something changed since the order of an uncertain group was last sought.
    stale: bool,
    /// Slots of processes that had not come back by then.
    absent: Vec<u16>,
    /// Slots of the host before that are expected back; until then the steering stays as it was.
    awaited: BTreeSet<u16>,
    /// The host before has ended, so what was its alone is ours.
    inherits: bool,
    /// What the vault holds.
    in_vault: Vec<Held<K::Fd>>,
    /// There was no memory for what the host before held.
    lacks_memory: bool,
}

fn done<F>() -> Answer<F> {
    (Reply::Done, Vec::new())
}

fn check(who: &Identity) -> Result<(), Error> {
    if who.device.len() > MAX_NAME {
        return Err(Error::TooLong("device name"));
    }
    if who.comm.len() > MAX_NAME {
        return Err(Error::TooLong("command name"));
    }
    Ok(())
}

impl<K: Kernel> Server<K> {
    pub(crate) fn new(mut kernel: K) -> Self {
        let next_slot = (kernel.random() % u32::from(SLOTS - 1)) as u16 + 1;
        Server {
            kernel,
            peers: HashMap::new(),
            members: BTreeMap::new(),
            entries: Entries::new(),
            groups: [Group::new(Family::V4), Group::new(Family::V6)],
            next_slot,
            stale: false,
            absent: Vec::new(),
            awaited: BTreeSet::new(),
            inherits: false,
            in_vault: Vec::new(),
            lacks_memory: false,
        }
    }

    /// Whether another process had better host this.
    pub(crate) fn lacks_memory(&self) -> bool {
        self.lacks_memory
    }

    /// Follows on a host, if there was one: calls its members and waits for them with a new order
    /// of steering. `ended` tells that it does not merely stand still.
    pub(crate) fn follow(&mut self, ended: bool) {
        self.inherits = ended;
        self.awaited = self.absentees().into_iter().collect();
    }

    /// Whether members of the host before have yet to come back.
    pub(crate) fn is_awaiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// No longer awaits those that ended meanwhile.
    pub(crate) fn review_awaited(&mut self) {
        self.awaited.retain(|slot| self.kernel.is_held(*slot));
    }

    /// Whether the answer to a request may be another once all are back: a join needs the order of
    /// all, a list is of all, and what is not there may be on its way. Members are known before
    /// they come back, publications and claims are not.
    pub(crate) fn is_early(&self, request: &Request) -> bool {
        match request {
            Request::Join { .. } | Request::Members { .. } => self.is_awaiting(),
            Request::Directory { slot } => self.awaited.contains(slot),
            Request::Lookup { id } => self.entries.lookup(id).is_none(),
            Request::Owner { kind, key } => self.entries.owner((*kind, *key)).is_none(),
            _ => false,
        }
    }

    /// Goes on without those who did not come back.
    pub(crate) fn stop_awaiting(&mut self) {
        self.awaited.clear();
    }

    /// Keeps all sockets in the vault: those of members too, for these may end together with this
    /// process.
    fn secure(&mut self) {
        let sockets: Vec<_> = self.groups.iter().flat_map(Group::sockets).collect();
        if sockets != self.in_vault {
            self.kernel.fill_vault(&sockets);
            self.in_vault = sockets;
        }
    }

    /// A process of our user connected.
    pub(crate) fn connected(&mut self, conn: ConnId, pid: i32, uid: u32) {
        self.peers.insert(conn, Peer { pid, uid, greeted: false });
    }

    /// A connection ended, and with it all that it brought.
    pub(crate) fn closed(&mut self, conn: ConnId) {
        self.peers.remove(&conn);
        let gone = self.members.iter().filter(|(_, m)| m.conn == conn);
        let gone: Vec<u16> = gone.map(|(slot, _)| *slot).collect();
        self.entries.closed(conn);
        self.remove(&gone, false);
        self.secure();
    }

    /// Answers one request.
    pub(crate) fn handle(
        &mut self,
        conn: ConnId,
        request: Request,
        fds: Vec<K::Fd>,
    ) -> Answer<K::Fd> {
        let answer = self.answer(conn, request, fds);
        self.secure();
        answer.unwrap_or_else(|e| (Reply::Failed(e), Vec::new()))
    }

    fn answer(
        &mut self,
        conn: ConnId,
        request: Request,
        fds: Vec<K::Fd>,
    ) -> Result<Answer<K::Fd>, Error> {
        let peer = self.peers.get_mut(&conn).ok_or(Error::Unknown)?;
        if let Request::Hello { version } = request {
            if version != VERSION {
                return Err(Error::Version { ours: VERSION, theirs: version });
            }
            peer.greeted = true;
            return Ok((Reply::Welcome { version: VERSION }, Vec::new()));
        }
        if !peer.greeted {
            return Err(Error::Protocol("a request before the hello".into()));
        }
        let mut fds = fds.into_iter();
        let mut next =
            || fds.next().ok_or_else(|| Error::Protocol("a descriptor is missing".into()));
        match request {
            Request::Hello { .. } => Ok(done()),
            Request::Join { who } => self.join(conn, who, next()?),
            Request::Rejoin { slot, joined_at, v4, v6, who } => {
                let directory = next()?;
                let v4 = if v4 { Some(next()?) } else { None };
                let v6 = if v6 { Some(next()?) } else { None };
                // The last one, if any, is the vault of the host before.
                let vault = next().ok();
                let answer = self.rejoin(conn, slot, joined_at, who, directory, [v4, v6])?;
                if let Some(vault) = vault.filter(|_| self.inherits) {
                    self.inherit(&vault)?;
                }
                Ok(answer)
            }
            Request::Leave { slot } => {
                self.own(conn, slot)?;
                self.entries.left(conn, slot);
                self.remove(&[slot], true);
                Ok(done())
            }
            Request::Members { after } => {
                // Who sees a member listed may count on its steering; while others are awaited it
                // is as it was.
                if self.is_stale() && !self.is_awaiting() {
                    self.settle()?;
                }
                Ok((Reply::Members(self.page(after)), Vec::new()))
            }
            Request::Directory { slot } => {
                let member = self.members.get(&slot).ok_or(Error::Unknown)?;
                Ok((Reply::Found, vec![member.directory.clone()]))
            }
            Request::Publish { id } => {
                self.entries.publish(conn, id, next()?)?;
                Ok(done())
            }
            Request::Lookup { id } => {
                let fd = self.entries.lookup(&id).ok_or(Error::Unknown)?;
                Ok((Reply::Found, vec![fd.clone()]))
            }
            Request::Withdraw { id } => {
                self.entries.withdraw(conn, &id)?;
                Ok(done())
            }
            Request::Claim { kind, key, slot } => self.claim(conn, (kind, key), slot),
            Request::Release { kind, key } => {
                self.entries.release(conn, (kind, key))?;
                if kind == CLAIM_SERVICE {
                    self.steer_services()?;
                }
                Ok(done())
            }
            Request::Owner { kind, key } => {
                let slot = self.entries.owner((kind, key)).ok_or(Error::Unknown)?;
                Ok((Reply::Owner { slot }, Vec::new()))
            }
        }
    }

    fn own(&self, conn: ConnId, slot: u16) -> Result<(), Error> {
        match self.members.get(&slot) {
            Some(member) if member.conn == conn => Ok(()),
            _ => Err(Error::Unknown),
        }
    }

    fn claim(&mut self, conn: ConnId, name: ClaimName, slot: u16) -> Result<Answer<K::Fd>, Error> {
        self.own(conn, slot)?;
        let now = self.kernel.uptime();
        let new = self.entries.claim(conn, name, slot, now)?;
        if new
            && name.0 == CLAIM_SERVICE
            && let Err(error) = self.steer_services()
        {
            self.entries.release(conn, name)?;
            return Err(error);
        }
        Ok(done())
    }

    /// Steers requests for services as they are claimed now; while others are awaited it is as it
    /// was.
    fn steer_services(&mut self) -> Result<(), Error> {
        let (leader, services) = (self.leader(), self.entries.services());
        let fits = |g: &Group<K::Fd>| g.program(leader, &services).len() <= steer::MAX_INSNS;
        if !self.groups.iter().all(fits) {
            return Err(Error::Full("too many services are listened for".into()));
        }
        if self.is_awaiting() {
            return Ok(());
        }
        if !self.is_settled() {
            return self.settle();
        }
        self.groups.iter().try_for_each(|g| g.steer(&mut self.kernel, leader, &services))
    }

    /// The member that receives what belongs to no slot: the one that joined first.
    fn leader(&self) -> Option<u16> {
        self.members.iter().min_by_key(|(slot, m)| (m.joined_at, **slot)).map(|(slot, _)| *slot)
    }

    fn page(&self, after: u16) -> Vec<Row> {
        let leader = self.leader();
        let Some(first) = after.checked_add(1) else { return Vec::new() };
        let page = self.members.range(first..).take(PAGE);
        page.map(|(slot, m)| Row {
            slot: *slot,
            pid: m.pid,
            uid: m.uid,
            joined_at: m.joined_at,
            leader: leader == Some(*slot),
            who: m.who.clone(),
        })
        .collect()
    }

    fn allot(&mut self) -> Result<(u16, K::Fd), Error> {
        for _ in 1..SLOTS {
            let slot = self.next_slot;
            self.next_slot = if slot + 1 == SLOTS { 1 } else { slot + 1 };
            if self.members.contains_key(&slot) {
                continue;
            }
            if let Some(deed) = self.kernel.deed(slot)? {
                return Ok((slot, deed));
            }
        }
        Err(Error::Full(format!("all {} slots are in use", SLOTS - 1)))
    }

    fn member(
        &self,
        conn: ConnId,
        joined_at: u64,
        who: Identity,
        directory: K::Fd,
    ) -> Member<K::Fd> {
        let (pid, uid) = self.peers.get(&conn).map_or((0, 0), |p| (p.pid, p.uid));
        Member { conn, pid, uid, joined_at, who, directory }
    }

    fn join(
        &mut self,
        conn: ConnId,
        who: Identity,
        directory: K::Fd,
    ) -> Result<Answer<K::Fd>, Error> {
        check(&who)?;
        let (slot, deed) = self.allot()?;
        let v4 = self.kernel.bind(Family::V4)?;
        let v6 = self.kernel.bind(Family::V6)?;
        if v4.is_none() && v6.is_none() {
            let errno = libc::EAFNOSUPPORT;
            return Err(Error::System { what: "neither IPv4 nor IPv6 here".into(), errno });
        }
        let joined_at = self.kernel.now();
        let sockets = [&v4, &v6];
        for (group, socket) in self.groups.iter_mut().zip(sockets) {
            if let Some(socket) = socket {
                group.admit(&self.kernel, slot, socket.clone(), true);
            }
        }
        let member = self.member(conn, joined_at, who, directory);
        self.members.insert(slot, member);
        self.stale = true;
        if let Err(error) = self.seat() {
            self.remove(&[slot], true);
            return Err(error);
        }
        let flags = (v4.is_some(), v6.is_some());
        let fds = [v4, v6, Some(deed), self.kernel.vault()].into_iter().flatten().collect();
        Ok((Reply::Joined { slot, joined_at, v4: flags.0, v6: flags.1 }, fds))
    }

    /// Steers to a member that has just been bound, and makes sure.
    fn seat(&mut self) -> Result<(), Error> {
        let (leader, services) = (self.leader(), self.entries.services());
        for group in &mut self.groups {
            if group.is_certain() {
                group.steer(&mut self.kernel, leader, &services)?;
                group.verify_last(&mut self.kernel);
            }
        }
        if self.is_settled() { Ok(()) } else { self.settle() }
    }

    fn rejoin(
        &mut self,
        conn: ConnId,
        slot: u16,
        joined_at: u64,
        who: Identity,
        directory: K::Fd,
        sockets: [Option<K::Fd>; 2],
    ) -> Result<Answer<K::Fd>, Error> {
        check(&who)?;
        if slot == 0 || slot >= SLOTS {
            return Err(Error::Protocol("no such slot".into()));
        }
        for (group, socket) in self.groups.iter_mut().zip(sockets) {
            if let Some(socket) = socket {
                group.admit(&self.kernel, slot, socket, false);
            }
        }
        let member = self.member(conn, joined_at, who, directory);
        self.members.insert(slot, member);
        self.awaited.remove(&slot);
        self.stale = true;
        Ok((Reply::Done, self.kernel.vault().into_iter().collect()))
    }

    /// Takes over what only the host before held.
    fn inherit(&mut self, vault: &K::Fd) -> Result<(), Error> {
        let sockets = self.kernel.open_vault(vault).inspect_err(|_| self.lacks_memory = true)?;
        for (family, socket) in sockets {
            let of = |group: &&mut Group<K::Fd>| group.family() == family;
            if let Some(group) = self.groups.iter_mut().find(of) {
                group.inherit(&self.kernel, socket);
            }
        }
        Ok(())
    }

    fn remove(&mut self, slots: &[u16], leave: bool) {
        if slots.is_empty() {
            return;
        }
        for slot in slots {
            self.members.remove(slot);
        }
        self.stale = true;
        let (leader, services) = (self.leader(), self.entries.services());
        for group in &mut self.groups {
            for slot in slots {
                group.vacate(&mut self.kernel, *slot, leave);
            }
            // An order that is not known must not replace a steering that was right; it is settled
            // soon.
            if group.is_certain() {
                let _ = group.steer(&mut self.kernel, leader, &services);
            }
        }
    }

    /// Whether members went of which it is not known that they ended: a killed process closes its
    /// descriptors one by one.
    pub(crate) fn has_missing(&self) -> bool {
        self.groups.iter().any(Group::has_missing)
    }

    /// Looks whether they have ended by now, and steers without them.
    pub(crate) fn review_missing(&mut self) {
        let (leader, services) = (self.leader(), self.entries.services());
        for group in &mut self.groups {
            if group.bury(&self.kernel) && group.is_certain() {
                let _ = group.steer(&mut self.kernel, leader, &services);
            }
        }
    }

    /// Whether the order of both groups is known.
    pub(crate) fn is_settled(&self) -> bool {
        self.groups.iter().all(|g| g.is_certain() || g.is_empty())
    }

    /// Whether [`Server::settle`] would find more than it did last time.
    pub(crate) fn is_stale(&self) -> bool {
        self.stale && !self.is_settled()
    }

    /// Finds out the order of the groups and steers by it.
    pub(crate) fn settle(&mut self) -> Result<(), Error> {
        let changed = std::mem::take(&mut self.stale);
        let (leader, services) = (self.leader(), self.entries.services());
        let absentees = if changed { None } else { Some(self.absentees()) };
        for group in &mut self.groups {
            // Probes pile up at a stopped process, so without a change only what is ours is probed.
            if absentees != Some(self.absent.clone()) || !group.holds(&mut self.kernel) {
                group.settle(&mut self.kernel, leader, &services);
            }
        }
        self.absent = match absentees {
            Some(absentees) => absentees,
            None if self.groups.iter().any(Group::has_foreign) => self.absentees(),
            None => Vec::new(),
        };
        for group in &mut self.groups {
            group.presume(&self.absent);
        }
        self.secure();
        self.groups.iter().try_for_each(|g| g.steer(&mut self.kernel, leader, &services))
    }

    /// Slots of processes that are not here; these get word to look for this registry.
    pub(crate) fn absentees(&mut self) -> Vec<u16> {
        let present: BTreeSet<u16> = self.members.keys().copied().collect();
        self.kernel.absentees(&present)
    }
}
