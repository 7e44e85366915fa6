//! From an address to the way there (kernel `drivers/infiniband/core/addr.c`). Whoever calls asks
//! the host's neighbours: while the next hop's hardware address is not known,
//! [`Cma::next_deadline`] says when to look for it again.

use crate::addr::Addr;
use crate::cma::Cma;
use crate::error::Error;
use crate::event::EventKind;
use crate::id::{IdState, Key, Local};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// First and longest pause between two looks for a neighbour.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// A host on one of this host's networks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Neighbour {
    /// Its address.
    pub ip: IpAddr,
    /// The interface to it.
    pub ifindex: u32,
}

/// The wait for a neighbour's hardware address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    neighbour: Neighbour,
    local: Local,
    until: Instant,
    look_at: Instant,
    pause: Duration,
}

impl Cma {
    /// The address that an id is bound to, to resolve another from.
    ///
    /// # Errors
    /// EINVAL when it is not merely bound, or `dst` is of another family.
    pub fn may_resolve(&self, key: Key, dst: &Addr) -> Result<Addr, Error> {
        let id = self.id(key)?;
        if id.state != IdState::Bound || !id.src.same_family(dst) {
            return Err(Error::INVAL);
        }
        Ok(id.src)
    }

    /// The destination is `dst`, reached from `local`. The event follows: at once, or when the next
    /// hop's hardware address is known, which is waited for `until` then.
    ///
    /// # Errors
    /// EINVAL when it is not merely bound.
    pub fn resolve_addr(
        &mut self,
        key: Key,
        dst: Addr,
        local: Local,
        wait: Option<(Neighbour, Instant)>,
        now: Instant,
    ) -> Result<(), Error> {
        let id = self.id_mut(key)?;
        if id.state != IdState::Bound {
            return Err(Error::INVAL);
        }
        id.dst = dst;
        id.state = IdState::AddrQuery;
        match wait {
            None => self.found(key, local),
            Some((neighbour, until)) => {
                let search =
                    Search { neighbour, local, until, look_at: now + PAUSE.0, pause: PAUSE.0 };
                self.searches.insert(key, search);
            }
        }
        Ok(())
    }

    fn found(&mut self, key: Key, local: Local) {
        let Some(id) = self.ids.get_mut(&key) else { return };
        if id.src.is_any() {
            let scope = if id.dst.scope() != 0 { local.ifindex } else { 0 };
            id.src = id.src.with_ip(local.ip, scope);
        }
        id.local = Some(local);
        id.state = IdState::AddrResolved;
        self.report(key, EventKind::AddrResolved, 0);
    }

    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.searches.values().map(|search| search.look_at).min()
    }

    /// Neighbours to look for now; [`Cma::looked`] takes what was seen.
    pub fn sought(&self, now: Instant) -> Vec<(Key, Neighbour)> {
        let due = self.searches.iter().filter(|(_, search)| search.look_at <= now);
        due.map(|(key, search)| (*key, search.neighbour)).collect()
    }

    /// The neighbour that an id waits for is known by now, or not. The id may be bound to resolve
    /// again after it was waited for in vain.
    pub fn looked(&mut self, key: Key, known: bool, now: Instant) {
        let Some(search) = self.searches.get_mut(&key) else { return };
        let local = search.local;
        if !known && now < search.until {
            search.pause = (search.pause * 2).min(PAUSE.1);
            search.look_at = (now + search.pause).min(search.until);
            return;
        }
        self.searches.remove(&key);
        if known {
            return self.found(key, local);
        }
        if let Some(id) = self.ids.get_mut(&key) {
            id.state = IdState::Bound;
        }
        self.report(key, EventKind::AddrError, -Error::TIMEDOUT.0);
    }

    /// Finds the path; on RoCE it follows from the addresses. The event follows.
    ///
    /// # Errors
    /// EINVAL when the address is not resolved or no time is given.
    pub fn resolve_route(&mut self, key: Key, timeout_ms: u32) -> Result<(), Error> {
        let id = self.id_mut(key)?;
        if timeout_ms == 0 || id.state != IdState::AddrResolved {
            return Err(Error::INVAL);
        }
        id.path = Some(id.make_path().ok_or(Error::NODEV)?);
        id.state = IdState::RouteResolved;
        self.report(key, EventKind::RouteResolved, 0);
        Ok(())
    }
}
