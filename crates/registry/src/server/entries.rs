//! What the members' processes hold under a name: published descriptors, and claims on numbers.
//!
//! Everything of a connection ends with it, and a connection holds a bounded number. A process that
//! stands still keeps its connection, so the one claim that others wait for is lent for a time
//! ([`JOINING_LEASE`]).

use crate::Error;
use crate::proto::MAX_ID;
use crate::server::ConnId;
use crate::steer;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// Publications and claims that one connection may hold.
pub(super) const MAX_ENTRIES: usize = 1 << 16;

/// Kind of a claim on a port of an RDMA port space. The key's upper half is the lower half of the
/// service id, its lower half the address ([`fold`](crate::fold)); a claim for all addresses
/// excludes other processes' claims for any.
pub const CLAIM_PORT: u32 = 1;
/// Kind of a claim on a service id, with the same keys: requests of the connection manager are
/// steered to its holder.
pub const CLAIM_SERVICE: u32 = 2;
/// Kind of the claim, with key 0, of a port of an InfiniBand subnet that joins a multicast group.
/// Another process may take it over once it is older than [`JOINING_LEASE`], and it does not
/// outlive the registry's host; [`Client::release`](crate::Client::release) says whether it was
/// kept until then.
pub const CLAIM_JOINING: u32 = 3;
/// How long a process has a claim of the kind [`CLAIM_JOINING`] for itself. To join takes a few
/// calls on the registry, of milliseconds each.
pub const JOINING_LEASE: Duration = Duration::from_secs(2);

/// Kind and key of a claim.
pub(super) type ClaimName = (u32, u64);

/// Who holds a claim.
struct Claim {
    owner: ConnId,
    slot: u16,
    /// When it was made, by [`Kernel::uptime`](super::Kernel::uptime).
    since: Duration,
}

/// All entries, with their connections.
pub(super) struct Entries<F> {
    published: HashMap<String, (ConnId, F)>,
    claims: BTreeMap<ClaimName, Claim>,
    /// How many a connection has.
    counts: HashMap<ConnId, usize>,
}

impl<F> Entries<F> {
    pub(super) fn new() -> Entries<F> {
        Entries { published: HashMap::new(), claims: BTreeMap::new(), counts: HashMap::new() }
    }

    /// A connection ended.
    pub(super) fn closed(&mut self, conn: ConnId) {
        self.published.retain(|_, (owner, _)| *owner != conn);
        self.claims.retain(|_, claim| claim.owner != conn);
        self.counts.remove(&conn);
    }

    /// The member of a slot left, whose connection stays.
    pub(super) fn left(&mut self, conn: ConnId, slot: u16) {
        let before = self.claims.len();
        self.claims.retain(|_, claim| claim.slot != slot);
        let released = before - self.claims.len();
        if let Some(count) = self.counts.get_mut(&conn) {
            *count = count.saturating_sub(released);
        }
    }

    fn add(&mut self, conn: ConnId) -> Result<(), Error> {
        let count = self.counts.entry(conn).or_default();
        if *count >= MAX_ENTRIES {
            return Err(Error::Full("too many publications and claims of one process".into()));
        }
        *count += 1;
        Ok(())
    }

    fn subtract(&mut self, conn: ConnId) {
        if let Some(count) = self.counts.get_mut(&conn) {
            *count = count.saturating_sub(1);
        }
    }

    pub(super) fn publish(&mut self, conn: ConnId, id: String, fd: F) -> Result<(), Error> {
        if id.len() > MAX_ID {
            return Err(Error::TooLong("id"));
        }
        match self.published.get(&id) {
            Some((owner, _)) if *owner != conn => return Err(Error::Taken),
            Some(_) => {}
            None => self.add(conn)?,
        }
        self.published.insert(id, (conn, fd));
        Ok(())
    }

    pub(super) fn lookup(&self, id: &str) -> Option<&F> {
        self.published.get(id).map(|(_, fd)| fd)
    }

    pub(super) fn withdraw(&mut self, conn: ConnId, id: &str) -> Result<(), Error> {
        match self.published.get(id) {
            Some((owner, _)) if *owner == conn => self.published.remove(id),
            _ => return Err(Error::Unknown),
        };
        self.subtract(conn);
        Ok(())
    }

    /// Claims a name at the time `now`; answers whether the claim is new.
    pub(super) fn claim(
        &mut self,
        conn: ConnId,
        name: ClaimName,
        slot: u16,
        now: Duration,
    ) -> Result<bool, Error> {
        if name.0 == CLAIM_PORT && self.overlaps(conn, name.1) {
            return Err(Error::Taken);
        }
        let before = match self.claims.get_mut(&name) {
            Some(claim) if (claim.owner, claim.slot) == (conn, slot) => {
                claim.since = now;
                return Ok(false);
            }
            Some(claim) if !may_be_taken_over(name, claim, conn, now) => return Err(Error::Taken),
            before => before.map(|claim| claim.owner),
        };
        self.add(conn)?;
        if let Some(before) = before {
            self.subtract(before);
        }
        self.claims.insert(name, Claim { owner: conn, slot, since: now });
        Ok(true)
    }

    /// Whether another connection claimed the port for all addresses, or for one where this claim
    /// is for all.
    fn overlaps(&self, conn: ConnId, key: u64) -> bool {
        let any = |key: u64| matches!(key as u32, steer::ANY_V4 | steer::ANY_V6);
        let (first, last) = (key & !0xffff_ffff, key | 0xffff_ffff);
        let mut others = self.claims.range((CLAIM_PORT, first)..=(CLAIM_PORT, last));
        others.any(|((_, other), claim)| claim.owner != conn && (any(key) || any(*other)))
    }

    pub(super) fn release(&mut self, conn: ConnId, name: ClaimName) -> Result<(), Error> {
        match self.claims.get(&name) {
            Some(claim) if claim.owner == conn => self.claims.remove(&name),
            _ => return Err(Error::Unknown),
        };
        self.subtract(conn);
        Ok(())
    }

    /// The slot of the member that holds a claim.
    pub(super) fn owner(&self, name: ClaimName) -> Option<u16> {
        self.claims.get(&name).map(|claim| claim.slot)
    }

    /// Claimed services with their slots.
    pub(super) fn services(&self) -> BTreeMap<u64, u16> {
        let services = self.claims.range((CLAIM_SERVICE, 0)..=(CLAIM_SERVICE, u64::MAX));
        services.map(|((_, key), claim)| (*key, claim.slot)).collect()
    }
}

/// Whether a connection may have a claim that another has. Two members of one process never take it
/// from each other: they share a connection, which could not tell whose claim it gives back, and a
/// process stands still as a whole.
fn may_be_taken_over(name: ClaimName, claim: &Claim, by: ConnId, now: Duration) -> bool {
    name.0 == CLAIM_JOINING && claim.owner != by && now.saturating_sub(claim.since) > JOINING_LEASE
}
