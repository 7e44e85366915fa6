//! Ports of the RDMA port spaces: who is bound where in this process, by the kernel's rules
//! (`cma_check_port`), and the claims that keep other processes from the same.
//!
//! Claims may wait for another process, so this table has a lock of its own that nobody takes who
//! receives packets.

use crate::addr::{Addr, PortSpace};
use crate::error::Error;
use crate::id::Key;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// What a claim is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ClaimKind {
    /// To be the only process bound there.
    Port,
    /// To receive the requests for the service.
    Service,
}

/// A claim: the service id's port space and port, and the address; any is spelled by the family's
/// unspecified address.
pub type Claim = (ClaimKind, u64, std::net::IpAddr);

/// Where other processes of the host learn which ports are taken.
pub trait Claims {
    /// Claims; an errno when another process has it or the registry does not answer.
    fn claim(&self, claim: Claim) -> Result<(), Error>;
    /// Gives back.
    fn release(&self, claim: Claim);
}

struct Bound {
    key: Key,
    addr: Addr,
    reuse: bool,
    /// An IPv6 address does not stand for IPv4 ones as well.
    one_family: bool,
    claims: Vec<Claim>,
}

/// How a binding may share its port.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sharing {
    /// `RDMA_OPTION_ID_REUSEADDR`.
    pub reuse: bool,
    /// `RDMA_OPTION_ID_AFONLY`; always so for IPv4.
    pub one_family: bool,
}

/// Ports for those who do not care.
#[derive(Clone, Debug)]
pub struct FreePorts {
    /// Out of which.
    pub range: RangeInclusive<u16>,
    /// Where to begin, at random.
    pub first: u16,
}

/// The table.
#[derive(Default)]
pub struct Ports {
    bound: BTreeMap<(PortSpace, u16), Vec<Bound>>,
    /// Holders in this process of each claim.
    claims: BTreeMap<Claim, usize>,
}

impl Ports {
    /// Binds `key` to `addr`, in which port 0 becomes a free one.
    ///
    /// # Errors
    /// EADDRINUSE and EADDRNOTAVAIL as the kernel; EPROTONOSUPPORT for a service id of no port
    /// space.
    pub fn bind(
        &mut self,
        key: Key,
        (space, sharing): (PortSpace, Sharing),
        mut addr: Addr,
        free: FreePorts,
        claims: &dyn Claims,
    ) -> Result<Addr, Error> {
        let space = space.for_binding(&addr).ok_or(Error::PROTONOSUPPORT)?;
        if addr.port() != 0 {
            addr.set_port(space, addr.port());
            self.take(key, space, addr, sharing, claims)?;
            return Ok(addr);
        }
        let (first, last) = (*free.range.start(), *free.range.end());
        let count = u32::from(last.saturating_sub(first)) + 1;
        for step in 0..count {
            let port = first + ((u32::from(free.first) + step) % count) as u16;
            if port == 0 || self.bound.contains_key(&(space, port)) {
                continue;
            }
            addr.set_port(space, port);
            match self.take(key, space, addr, sharing, claims) {
                Err(Error::ADDRINUSE | Error::ADDRNOTAVAIL) => {}
                Err(other) => return Err(other),
                Ok(()) => return Ok(addr),
            }
        }
        Err(Error::ADDRNOTAVAIL)
    }

    fn take(
        &mut self,
        key: Key,
        space: PortSpace,
        addr: Addr,
        sharing: Sharing,
        claims: &dyn Claims,
    ) -> Result<(), Error> {
        let one_family = sharing.one_family || matches!(addr, Addr::V4(..));
        let bound = Bound { key, addr, reuse: sharing.reuse, one_family, claims: Vec::new() };
        self.check(space, &bound, sharing.reuse)?;
        let port = (space, addr.port());
        self.bound.entry(port).or_default().push(bound);
        // Who shares a port with others excludes them only when listening.
        if !sharing.reuse
            && let Err(error) = self.claim(key, port, ClaimKind::Port, claims)
        {
            self.unbind(key, claims);
            return Err(error);
        }
        Ok(())
    }

    fn check(&self, space: PortSpace, new: &Bound, reuse: bool) -> Result<(), Error> {
        let others = self.bound.get(&(space, new.addr.port())).map_or(&[][..], Vec::as_slice);
        for other in others.iter().filter(|other| other.key != new.key) {
            let apart = new.one_family && other.one_family && !new.addr.same_family(&other.addr);
            if (reuse && other.reuse) || apart {
                continue;
            }
            if new.addr.is_any() || other.addr.is_any() {
                return Err(Error::ADDRNOTAVAIL);
            }
            if new.addr.ip() == other.addr.ip() {
                return Err(Error::ADDRINUSE);
            }
        }
        Ok(())
    }

    /// `key` begins to listen: requests for its service come to this process.
    ///
    /// # Errors
    /// EADDRINUSE and EADDRNOTAVAIL when somebody shares the port.
    pub fn listen(&mut self, key: Key, claims: &dyn Claims) -> Result<(), Error> {
        let found = self.bound.iter().find_map(|(port, all)| {
            all.iter().find(|bound| bound.key == key).map(|bound| (*port, bound))
        });
        let Some((port, bound)) = found else { return Err(Error::INVAL) };
        self.check(port.0, bound, false)?;
        self.claim(key, port, ClaimKind::Port, claims)?;
        self.claim(key, port, ClaimKind::Service, claims)
    }

    /// `key`, if it is bound, shares its port otherwise from now on (the kernel looks at
    /// `reuseaddr` and `afonly` whenever somebody else binds).
    pub fn share(&mut self, key: Key, sharing: Sharing, claims: &dyn Claims) {
        let bound = self.bound.iter_mut().flat_map(|(port, all)| {
            all.iter_mut().filter(|bound| bound.key == key).map(|bound| (*port, bound))
        });
        let Some((port, bound)) = bound.last() else { return };
        bound.reuse = sharing.reuse;
        bound.one_family = sharing.one_family || matches!(bound.addr, Addr::V4(..));
        for claim in std::mem::take(&mut bound.claims) {
            self.release(claim, claims);
        }
        if !sharing.reuse {
            // What another process has by now is found out by whoever listens.
            let _ = self.claim(key, port, ClaimKind::Port, claims);
        }
    }

    /// `key` is bound no longer.
    pub fn unbind(&mut self, key: Key, claims: &dyn Claims) {
        let mut gone = Vec::new();
        self.bound.retain(|_, all| {
            all.retain_mut(|bound| {
                if bound.key == key {
                    gone.append(&mut bound.claims);
                }
                bound.key != key
            });
            !all.is_empty()
        });
        for claim in gone {
            self.release(claim, claims);
        }
    }

    fn release(&mut self, claim: Claim, claims: &dyn Claims) {
        if let Some(holders) = self.claims.get_mut(&claim) {
            *holders -= 1;
            if *holders == 0 {
                self.claims.remove(&claim);
                claims.release(claim);
            }
        }
    }

    fn claim(
        &mut self,
        key: Key,
        port: (PortSpace, u16),
        kind: ClaimKind,
        claims: &dyn Claims,
    ) -> Result<(), Error> {
        let all = self.bound.get_mut(&port).map_or(&mut [][..], Vec::as_mut_slice);
        let Some(bound) = all.iter_mut().find(|bound| bound.key == key) else {
            return Err(Error::INVAL);
        };
        let id = port.0.service_id(port.1);
        for ip in addresses(bound) {
            let claim = (kind, id, ip);
            if bound.claims.contains(&claim) {
                continue;
            }
            let holders = self.claims.entry(claim).or_default();
            if *holders == 0
                && let Err(error) = claims.claim(claim)
            {
                self.claims.remove(&claim);
                let any = bound.addr.is_any() && error == Error::ADDRINUSE;
                return Err(if any { Error::ADDRNOTAVAIL } else { error });
            }
            *holders += 1;
            bound.claims.push(claim);
        }
        Ok(())
    }
}

/// The addresses to claim for a binding. An InfiniBand request does not say which address it is
/// for.
fn addresses(bound: &Bound) -> Vec<std::net::IpAddr> {
    let any_v4 = std::net::Ipv4Addr::UNSPECIFIED.into();
    let any_v6 = std::net::Ipv6Addr::UNSPECIFIED.into();
    match bound.addr {
        Addr::Ib(_) => vec![any_v4, any_v6],
        Addr::V6(ip, ..) if ip.is_unspecified() && !bound.one_family => vec![any_v4, any_v6],
        other => other.ip().into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    /// What this process claimed, and what others did before.
    #[derive(Default)]
    struct Registry {
        ours: RefCell<BTreeSet<Claim>>,
        others: BTreeSet<Claim>,
    }

    impl Claims for Registry {
        fn claim(&self, claim: Claim) -> Result<(), Error> {
            if self.others.contains(&claim) {
                return Err(Error::ADDRINUSE);
            }
            assert!(self.ours.borrow_mut().insert(claim), "claimed twice");
            Ok(())
        }

        fn release(&self, claim: Claim) {
            assert!(self.ours.borrow_mut().remove(&claim), "not claimed");
        }
    }

    struct Bench {
        ports: Ports,
        registry: Registry,
        keys: u64,
    }

    impl Bench {
        fn new() -> Bench {
            Bench { ports: Ports::default(), registry: Registry::default(), keys: 0 }
        }

        fn bind(&mut self, addr: &str, sharing: Sharing) -> Result<(Key, Addr), Error> {
            self.keys += 1;
            let key = Key(self.keys);
            let addr = match addr.parse().unwrap() {
                std::net::SocketAddr::V4(v4) => Addr::V4(*v4.ip(), v4.port()),
                std::net::SocketAddr::V6(v6) => Addr::V6(*v6.ip(), v6.port(), 0, 0),
            };
            let space = PortSpace::Tcp;
            let free = FreePorts { range: 100..=103, first: 2 };
            let bound = self.ports.bind(key, (space, sharing), addr, free, &self.registry)?;
            Ok((key, bound))
        }
    }

    const EXCLUSIVE: Sharing = Sharing { reuse: false, one_family: false };
    const REUSE: Sharing = Sharing { reuse: true, one_family: false };
    const ONE_FAMILY: Sharing = Sharing { reuse: false, one_family: true };

    #[test]
    fn one_address_has_a_port_once_and_a_wildcard_excludes_all() {
        let mut bench = Bench::new();
        let (first, _) = bench.bind("10.0.0.1:7000", EXCLUSIVE).unwrap();
        assert_eq!(bench.bind("10.0.0.1:7000", EXCLUSIVE), Err(Error::ADDRINUSE));
        assert_eq!(bench.bind("0.0.0.0:7000", EXCLUSIVE), Err(Error::ADDRNOTAVAIL));
        let (second, _) = bench.bind("10.0.0.2:7000", EXCLUSIVE).unwrap();
        for key in [first, second] {
            bench.ports.unbind(key, &bench.registry);
        }
        assert!(bench.registry.ours.borrow().is_empty());
        bench.bind("0.0.0.0:7000", EXCLUSIVE).unwrap();
        assert_eq!(bench.bind("[::]:7000", EXCLUSIVE), Err(Error::ADDRNOTAVAIL));
        bench.bind("[::]:7000", ONE_FAMILY).unwrap();
    }

    #[test]
    fn who_shares_a_port_may_not_listen_there_together() {
        let mut bench = Bench::new();
        let (first, _) = bench.bind("10.0.0.1:7000", REUSE).unwrap();
        let (second, _) = bench.bind("10.0.0.1:7000", REUSE).unwrap();
        assert!(bench.registry.ours.borrow().is_empty());
        assert_eq!(bench.ports.listen(first, &bench.registry), Err(Error::ADDRINUSE));
        bench.ports.unbind(second, &bench.registry);
        bench.ports.listen(first, &bench.registry).unwrap();
        assert_eq!(bench.registry.ours.borrow().len(), 2);
        bench.ports.unbind(first, &bench.registry);
        assert!(bench.registry.ours.borrow().is_empty());
    }

    #[test]
    fn who_is_bound_may_still_begin_to_share() {
        let mut bench = Bench::new();
        let (first, _) = bench.bind("10.0.0.1:7000", EXCLUSIVE).unwrap();
        assert_eq!(bench.bind("10.0.0.1:7000", REUSE), Err(Error::ADDRINUSE));
        bench.ports.share(first, REUSE, &bench.registry);
        assert!(bench.registry.ours.borrow().is_empty(), "other processes may share it too");
        bench.bind("10.0.0.1:7000", REUSE).unwrap();
        let (any, _) = bench.bind("[::]:7001", EXCLUSIVE).unwrap();
        assert_eq!(bench.registry.ours.borrow().len(), 2);
        bench.ports.share(any, ONE_FAMILY, &bench.registry);
        assert_eq!(bench.registry.ours.borrow().len(), 1);
        bench.bind("0.0.0.0:7001", EXCLUSIVE).unwrap();
    }

    #[test]
    fn port_zero_finds_a_free_one_until_none_is_left() {
        let mut bench = Bench::new();
        let taken = (ClaimKind::Port, PortSpace::Tcp.service_id(103), [10, 0, 0, 1].into());
        bench.registry.others.insert(taken);
        let mut ports = Vec::new();
        for _ in 0..3 {
            ports.push(bench.bind("10.0.0.1:0", EXCLUSIVE).unwrap().1.port());
        }
        assert_eq!(ports, [102, 100, 101]);
        assert_eq!(bench.bind("10.0.0.1:0", EXCLUSIVE), Err(Error::ADDRNOTAVAIL));
    }

    #[test]
    fn another_processes_port_is_in_use() {
        let mut bench = Bench::new();
        let id = PortSpace::Tcp.service_id(7000);
        bench.registry.others.insert((ClaimKind::Port, id, [10, 0, 0, 1].into()));
        assert_eq!(bench.bind("10.0.0.1:7000", EXCLUSIVE), Err(Error::ADDRINUSE));
        bench.bind("10.0.0.2:7000", EXCLUSIVE).unwrap();
    }
}
