//! Socket addresses as `/dev/infiniband/rdma_cm` carries them: IPv4, IPv6 and InfiniBand.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
const AF_IB: u16 = 27;

/// Bits of a service id that name a port space (IBA annex A11).
const PORT_SPACE_MASK: u64 = 0xffff_ffff_ffff_0000;

/// `struct sockaddr_ib` (rdma-core `rdma/rsocket.h`, kernel `rdma/ib.h`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IbAddr {
    /// Partition key.
    pub pkey: u16,
    /// Flow label.
    pub flowinfo: u32,
    /// GID; zero for any.
    pub gid: [u8; 16],
    /// Service id.
    pub sid: u64,
    /// Which bits of it count.
    pub sid_mask: u64,
    /// Scope.
    pub scope_id: u64,
}

/// An address of either end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Addr {
    /// None yet: family 0.
    #[default]
    None,
    /// IPv4.
    V4(Ipv4Addr, u16),
    /// IPv6 with port, flow information (network order, as it came) and scope.
    V6(Ipv6Addr, u16, u32, u32),
    /// InfiniBand.
    Ib(IbAddr),
}

impl Addr {
    /// Reads a `struct sockaddr` of some family; `None` for a family of another kind or bytes too
    /// few.
    pub fn parse(bytes: &[u8]) -> Option<Addr> {
        let array = |at: usize, len: usize| bytes.get(at..at + len);
        let be16 = |at: usize| Some(u16::from_be_bytes(array(at, 2)?.try_into().ok()?));
        let be64 = |at: usize| Some(u64::from_be_bytes(array(at, 8)?.try_into().ok()?));
        let ne32 = |at: usize| Some(u32::from_ne_bytes(array(at, 4)?.try_into().ok()?));
        let gid = |at: usize| <[u8; 16]>::try_from(array(at, 16)?).ok();
        match u16::from_ne_bytes(array(0, 2)?.try_into().ok()?) {
            0 => Some(Addr::None),
            AF_INET => {
                let ip: [u8; 4] = array(4, 4)?.try_into().ok()?;
                Some(Addr::V4(ip.into(), be16(2)?))
            }
            AF_INET6 => Some(Addr::V6(gid(8)?.into(), be16(2)?, ne32(4)?, ne32(24)?)),
            AF_IB => Some(Addr::Ib(IbAddr {
                pkey: be16(2)?,
                flowinfo: u32::from_be_bytes(array(4, 4)?.try_into().ok()?),
                gid: gid(8)?,
                sid: be64(24)?,
                sid_mask: be64(32)?,
                scope_id: u64::from_ne_bytes(array(40, 8)?.try_into().ok()?),
            })),
            _ => None,
        }
    }

    /// The address as a `struct sockaddr` of its family, [`Addr::len`] bytes.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(48);
        match self {
            Addr::None => {}
            Addr::V4(ip, port) => {
                out.extend(AF_INET.to_ne_bytes());
                out.extend(port.to_be_bytes());
                out.extend(ip.octets());
                out.extend([0; 8]);
            }
            Addr::V6(ip, port, flow, scope) => {
                out.extend(AF_INET6.to_ne_bytes());
                out.extend(port.to_be_bytes());
                out.extend(flow.to_ne_bytes());
                out.extend(ip.octets());
                out.extend(scope.to_ne_bytes());
            }
            Addr::Ib(ib) => {
                out.extend(AF_IB.to_ne_bytes());
                out.extend(ib.pkey.to_be_bytes());
                out.extend(ib.flowinfo.to_be_bytes());
                out.extend(ib.gid);
                out.extend(ib.sid.to_be_bytes());
                out.extend(ib.sid_mask.to_be_bytes());
                out.extend(ib.scope_id.to_ne_bytes());
            }
        }
        out
    }

    /// Length of the structure in bytes (kernel `rdma_addr_size`); 0 without an address.
    pub fn len(&self) -> usize {
        match self {
            Addr::None => 0,
            Addr::V4(..) => 16,
            Addr::V6(..) => 28,
            Addr::Ib(_) => 48,
        }
    }

    /// Whether there is no address.
    pub fn is_empty(&self) -> bool {
        *self == Addr::None
    }

    /// Whether both are of one family.
    pub fn same_family(&self, other: &Addr) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// The IP address, also of an InfiniBand address, whose GIDs are IP addresses on RoCE.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Addr::None => None,
            Addr::V4(ip, _) => Some((*ip).into()),
            Addr::V6(ip, ..) => Some(ip.to_canonical()),
            Addr::Ib(ib) => Some(Ipv6Addr::from(ib.gid).to_canonical()),
        }
    }

    /// The same with another IP address; the family stays, where that is possible.
    #[must_use]
    pub fn with_ip(&self, ip: IpAddr, scope: u32) -> Addr {
        match (self, ip) {
            (Addr::Ib(ib), ip) => Addr::Ib(IbAddr { gid: gid_of(ip), ..*ib }),
            (_, IpAddr::V4(ip)) => Addr::V4(ip, self.port()),
            (_, IpAddr::V6(ip)) => Addr::V6(ip, self.port(), 0, scope),
        }
    }

    /// Interface of a link-local address; 0 when it names none.
    pub fn scope(&self) -> u32 {
        match self {
            Addr::V6(.., scope) => *scope,
            Addr::Ib(ib) => ib.scope_id as u32,
            _ => 0,
        }
    }

    /// Whether it stands for all addresses (kernel `cma_any_addr`).
    pub fn is_any(&self) -> bool {
        self.ip().is_none_or(|ip| ip.is_unspecified())
    }

    /// Whether it needs an interface besides and names none.
    pub fn lacks_scope(&self) -> bool {
        matches!(self, Addr::V6(ip, _, _, 0) if ip.is_unicast_link_local())
    }

    /// Port; of an InfiniBand address the lower bits of the service id that count.
    pub fn port(&self) -> u16 {
        match self {
            Addr::None => 0,
            Addr::V4(_, port) | Addr::V6(_, port, ..) => *port,
            Addr::Ib(ib) => (ib.sid & ib.sid_mask) as u16,
        }
    }

    /// Sets the port. `space` is the port space of an InfiniBand address's service id.
    pub fn set_port(&mut self, space: PortSpace, to: u16) {
        match self {
            Addr::None => {}
            Addr::V4(_, port) | Addr::V6(_, port, ..) => *port = to,
            Addr::Ib(ib) => {
                ib.sid = space.service_id(to);
                ib.sid_mask = u64::MAX;
            }
        }
    }
}

/// The GID of an address on RoCE.
pub fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// RDMA port spaces (IBA annex A11; `enum rdma_ucm_port_space`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// IP over InfiniBand.
    IpOIb = 0x0002,
    /// Reliable connections.
    Tcp = 0x0106,
    /// Unreliable datagrams.
    Udp = 0x0111,
    /// Any kind of queue pair.
    Ib = 0x013f,
}

impl PortSpace {
    /// The port space of a number.
    pub fn of(number: u16) -> Option<PortSpace> {
        [PortSpace::IpOIb, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib]
            .into_iter()
            .find(|space| *space as u16 == number)
    }

    /// Service id of a port.
    pub fn service_id(self, port: u16) -> u64 {
        (self as u64) << 16 | u64::from(port)
    }

    /// The port space that binding to `addr` uses up ports of (kernel `cma_select_inet_ps`,
    /// `cma_select_ib_ps`); `None` for a service id that fits none.
    pub fn for_binding(self, addr: &Addr) -> Option<PortSpace> {
        let Addr::Ib(ib) = addr else { return Some(self) };
        let mask = ib.sid_mask & PORT_SPACE_MASK;
        let fits = |space: PortSpace| ib.sid & mask == space.service_id(0) & mask;
        [PortSpace::Ib, PortSpace::Tcp, PortSpace::Udp]
            .into_iter()
            .find(|space| (self == PortSpace::Ib || self == *space) && fits(*space))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_emitted_parses_to_the_same() {
        let ib = IbAddr {
            pkey: cm::DEFAULT_PKEY,
            gid: [7; 16],
            sid: 0x0106_1234,
            sid_mask: !0,
            ..IbAddr::default()
        };
        for addr in [
            Addr::V4([10, 0, 0, 1].into(), 7471),
            Addr::V6("fe80::1".parse().unwrap(), 7471, 0x1234, 5),
            Addr::Ib(ib),
        ] {
            let bytes = addr.emit();
            assert_eq!(bytes.len(), addr.len());
            assert_eq!(Addr::parse(&bytes), Some(addr));
            assert_eq!(Addr::parse(&bytes[..bytes.len() - 9]), None);
        }
        assert_eq!(Addr::parse(&[1, 0, 0, 0]), None, "a UNIX address");
    }

    #[test]
    fn a_service_id_chooses_the_port_space_as_the_kernel_does() {
        let ib = |sid, sid_mask| Addr::Ib(IbAddr { sid, sid_mask, ..IbAddr::default() });
        let tcp = ib(0x0106_0000, PORT_SPACE_MASK);
        assert_eq!(PortSpace::Ib.for_binding(&tcp), Some(PortSpace::Tcp));
        assert_eq!(PortSpace::Udp.for_binding(&tcp), None);
        assert_eq!(PortSpace::Tcp.for_binding(&ib(0, 0)), Some(PortSpace::Tcp));
        assert_eq!(PortSpace::Ib.for_binding(&ib(0, 0)), Some(PortSpace::Ib));
        assert_eq!(PortSpace::Ib.for_binding(&ib(0x0999_0000, !0)), None);
        assert_eq!(ib(0x0106_1234, !0).port(), 0x1234);
        assert_eq!(ib(0x0106_1234, PORT_SPACE_MASK).port(), 0);
    }
}
