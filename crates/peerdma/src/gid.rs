//! A port's global identifier: on RoCEv2 an IPv6 address, or an IPv4 address mapped into one.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// A 16-byte global identifier (IBA 4.1.1). Prints as the IP address it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(into = "String", try_from = "String")
)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether all bytes are 0: an unused entry of a GID table.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// The IP address it stands for on RoCEv2.
    pub fn ip(&self) -> IpAddr {
        Ipv6Addr::from(self.0).to_canonical()
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Gid {
        match ip {
            IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
            IpAddr::V6(v6) => Gid(v6.octets()),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ip().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

impl std::str::FromStr for Gid {
    type Err = std::net::AddrParseError;
    fn from_str(text: &str) -> Result<Gid, Self::Err> {
        text.parse::<IpAddr>().map(Gid::from)
    }
}

impl From<Gid> for String {
    fn from(gid: Gid) -> String {
        gid.to_string()
    }
}

impl TryFrom<String> for Gid {
    type Error = std::net::AddrParseError;
    fn try_from(text: String) -> Result<Gid, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_ipv4_prints_as_ipv4_and_comes_back() {
        let gid: Gid = "192.0.2.7".parse().unwrap();
        assert_eq!(&gid.0[10..], &[0xff, 0xff, 192, 0, 2, 7]);
        assert_eq!(gid.to_string(), "192.0.2.7");
        let gid: Gid = "fe80::1".parse().unwrap();
        assert_eq!(gid.to_string(), "fe80::1");
    }
}
