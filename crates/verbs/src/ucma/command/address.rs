//! Addresses: an id is bound to its own, and finds the way to its peer's.

use super::request::{Command, errno};
use crate::base::ffi::{Errno, INVALID, Res};
use crate::ucma::host;
use crate::ucma::layout::{Fields, IN6_LEN, STORAGE_LEN};
use cma::{Addr, FreePorts, IbAddr, Key};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

impl Command<'_> {
    pub(super) fn bind_ip(&self) -> Res<()> {
        let bytes = self.read::<40>()?;
        let fields = Fields(&bytes);
        let addr = fields.addr(8, IN6_LEN);
        if addr.is_empty() {
            return Err(INVALID);
        }
        let key = self.key(fields.u32(36))?;
        self.bind(key, addr)
    }

    pub(super) fn bind_storage(&self) -> Res<()> {
        let bytes = self.read::<136>()?;
        let fields = Fields(&bytes);
        let addr = fields.addr(8, STORAGE_LEN);
        let len = usize::from(fields.u16(4));
        if fields.u16(6) != 0 || len == 0 || len != addr.len() {
            return Err(INVALID);
        }
        let key = self.key(fields.u32(0))?;
        self.bind(key, addr)
    }

    /// `rdma_bind_addr`.
    pub(super) fn bind(&self, key: Key, addr: Addr) -> Res<()> {
        let how = self.with(|cma| cma.may_bind(key, &addr))?;
        // In the kernel, too, a binding to the loopback address names no device (`cma_any_addr`):
        // libfabric's server binds there first, and tells its peers that address if it is given
        // one.
        let local = match addr.ip() {
            Some(ip) if !ip.is_unspecified() && !ip.is_loopback() => {
                Some(self.own_address(ip, addr.scope())?)
            }
            _ => None,
        };
        if !host::may_bind(addr.port()) {
            return Err(Errno(libc::EACCES));
        }
        let first = self.with(|cma| Ok(cma.random_port()))?;
        let free = FreePorts { range: host::local_ports(), first };
        let addr = self
            .service
            .with_ports(|ports, claims| ports.bind(key, how, addr, free, claims))
            .map_err(errno)?;
        self.with(|cma| cma.bind(key, addr, local)).inspect_err(|_| self.service.free_ports(key))
    }

    fn own_address(&self, ip: IpAddr, scope: u32) -> Res<cma::Local> {
        host::local(self.channel, ip, scope).ok_or(Errno(libc::EADDRNOTAVAIL))
    }

    pub(super) fn resolve_ip(&self) -> Res<()> {
        let bytes = self.read::<64>()?;
        let fields = Fields(&bytes);
        let (src, dst) = (fields.addr(0, IN6_LEN), fields.addr(IN6_LEN, IN6_LEN));
        if dst.is_empty() || (src.is_empty() && fields.u16(0) != 0) {
            return Err(INVALID);
        }
        let key = self.key(fields.u32(56))?;
        self.resolve(key, src, dst, fields.u32(60))
    }

    pub(super) fn resolve_storage(&self) -> Res<()> {
        let bytes = self.read::<272>()?;
        let fields = Fields(&bytes);
        let (src, dst) = (fields.addr(16, STORAGE_LEN), fields.addr(144, STORAGE_LEN));
        let (src_len, dst_len) = (usize::from(fields.u16(8)), usize::from(fields.u16(10)));
        let bad_src = src_len != 0 && src_len != src.len();
        if fields.u32(12) != 0 || bad_src || dst_len == 0 || dst_len != dst.len() {
            return Err(INVALID);
        }
        let key = self.key(fields.u32(0))?;
        self.resolve(key, src, dst, fields.u32(4))
    }

    /// `rdma_resolve_addr`.
    fn resolve(&self, key: Key, src: Addr, dst: Addr, timeout_ms: u32) -> Res<()> {
        if dst.lacks_scope() {
            return Err(INVALID);
        }
        if self.with(|cma| cma.is_idle(key))? {
            let src = if src.is_empty() { any_like(&dst) } else { src };
            self.bind(key, src)?;
        }
        let bound = self.with(|cma| cma.may_resolve(key, &dst))?;
        let from = if bound.is_any() { None } else { bound.ip() };
        let dst = if dst.is_any() { loopback_like(&dst, from) } else { dst };
        let ip = dst.ip().ok_or(INVALID)?;
        let scope = if dst.scope() != 0 { dst.scope() } else { bound.scope() };
        let (local, hop) = host::route(self.channel, from, ip, scope)?;
        let now = Instant::now();
        let wait = hop.map(|hop| (hop, now + Duration::from_millis(timeout_ms.into())));
        self.with(|cma| cma.resolve_addr(key, dst, local, wait, now))
    }

    pub(super) fn resolve_route(&self) -> Res<()> {
        let bytes = self.read::<8>()?;
        let fields = Fields(&bytes);
        let key = self.key(fields.u32(0))?;
        self.with(|cma| cma.resolve_route(key, fields.u32(4)))
    }
}

/// The address that stands for all, of the same family.
fn any_like(addr: &Addr) -> Addr {
    match addr {
        Addr::V6(_, _, _, scope) => Addr::V6(Ipv6Addr::UNSPECIFIED, 0, 0, *scope),
        Addr::Ib(ib) => Addr::Ib(IbAddr { pkey: ib.pkey, ..IbAddr::default() }),
        _ => Addr::V4(Ipv4Addr::UNSPECIFIED, 0),
    }
}

/// Who connects to all addresses means this host.
fn loopback_like(addr: &Addr, own: Option<IpAddr>) -> Addr {
    let loopback: IpAddr = match addr {
        Addr::V6(..) => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    addr.with_ip(own.unwrap_or(loopback), 0)
}
