//! Socket addresses as the bytes that the kernel takes and gives (ip(7), ipv6(7)).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of `sockaddr_in6`, the longer of the two.
pub(crate) const MAX_LEN: usize = size_of::<libc::sockaddr_in6>();

/// A `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Name {
    bytes: [u8; MAX_LEN],
    len: usize,
}

impl Name {
    pub(crate) const EMPTY: Name = Name { bytes: [0; MAX_LEN], len: 0 };

    /// `scope_id` is the interface index of a link-local IPv6 address, otherwise 0.
    pub(crate) fn new(ip: IpAddr, port: u16, scope_id: u32) -> Name {
        let mut bytes = [0; MAX_LEN];
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        let (family, len) = match ip {
            IpAddr::V4(ip) => {
                bytes[4..8].copy_from_slice(&ip.octets());
                (libc::AF_INET, size_of::<libc::sockaddr_in>())
            }
            IpAddr::V6(ip) => {
                bytes[8..24].copy_from_slice(&ip.octets());
                bytes[24..28].copy_from_slice(&scope_id.to_ne_bytes());
                (libc::AF_INET6, MAX_LEN)
            }
        };
        bytes[..2].copy_from_slice(&(family as libc::sa_family_t).to_ne_bytes());
        Name { bytes, len }
    }

    /// IP address, an IPv4-mapped one as IPv4, and port; `None` for another family or too few
    /// bytes.
    pub(crate) fn decode(&self) -> Option<(IpAddr, u16)> {
        let bytes = self.as_bytes();
        let family = libc::sa_family_t::from_ne_bytes(bytes.get(..2)?.try_into().ok()?);
        let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().ok()?);
        let ip: IpAddr = match i32::from(family) {
            libc::AF_INET => Ipv4Addr::from(<[u8; 4]>::try_from(bytes.get(4..8)?).ok()?).into(),
            libc::AF_INET6 => {
                Ipv6Addr::from(<[u8; 16]>::try_from(bytes.get(8..24)?).ok()?).to_canonical()
            }
            _ => return None,
        };
        Some((ip, port))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The whole buffer, for the kernel to fill; follow with [`Name::set_len`].
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// States how many bytes the kernel filled.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len.min(MAX_LEN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for ip in ["192.0.2.1", "fe80::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            assert_eq!(Name::new(ip, 4791, 7).decode(), Some((ip, 4791)));
        }
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        let plain: IpAddr = "192.0.2.1".parse().unwrap();
        assert_eq!(Name::new(mapped, 1, 0).decode(), Some((plain, 1)));
    }

    #[test]
    fn short_or_foreign_names_are_none() {
        assert_eq!(Name::EMPTY.decode(), None);
        let mut name = Name::new(Ipv6Addr::LOCALHOST.into(), 1, 0);
        name.set_len(23);
        assert_eq!(name.decode(), None);
        name.bytes[..2].copy_from_slice(&(libc::AF_UNIX as libc::sa_family_t).to_ne_bytes());
        name.set_len(MAX_LEN);
        assert_eq!(name.decode(), None);
    }
}
