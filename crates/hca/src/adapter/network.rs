//! What the port is on, and what only a port there has.

use crate::adapter::management::ManagementSink;
use crate::adapter::membership::Memberships;
use crate::adapter::port::Port;
use link::{Interfaces, Lan};
use rustix::fd::BorrowedFd;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

/// The network of a port.
pub(crate) enum Attached {
    /// Interfaces of the host.
    Host,
    /// An InfiniBand subnet on the loopback interface.
    Subnet(Subnet),
    /// An Ethernet of the user's.
    Ethernet(Ethernet),
}

/// What only a port of a subnet has.
#[derive(Default)]
pub(crate) struct Subnet {
    pub(crate) sink: OnceLock<Arc<dyn ManagementSink>>,
    pub(crate) memberships: Memberships,
}

/// What only a port of an Ethernet has.
pub(crate) struct Ethernet {
    pub(crate) lan: Arc<Lan>,
    pub(crate) gateway: Gateway,
}

/// The host as the Ethernet knows it.
#[derive(Default)]
pub(crate) struct Gateway {
    host: OnceLock<Option<Port>>,
    /// Addresses of the host that the port may have as well.
    shared: Vec<IpAddr>,
}

impl Gateway {
    /// The port may have these addresses of the host's.
    pub(crate) fn sharing(addresses: Vec<IpAddr>) -> Gateway {
        Gateway { host: OnceLock::new(), shared: addresses }
    }

    /// Whether the port may have an address that is the host's. What is sent to loopback addresses
    /// is of the host's own programs.
    pub(crate) fn shares(&self, ip: IpAddr) -> bool {
        !ip.is_loopback() && self.shared.contains(&ip)
    }

    /// Readable when the host's interfaces changed; `None` before somebody asked for an address of
    /// the host's.
    pub(crate) fn watch_fd(&self) -> Option<BorrowedFd<'_>> {
        self.host.get()?.as_ref()?.watch_fd()
    }

    /// Index of the interface that has an address, if the host has it now.
    pub(crate) fn interface_of(&self, ip: IpAddr) -> Option<u32> {
        let port = self.host.get_or_init(|| Port::open(Interfaces::default()).ok());
        port.as_ref()?.now(|_| ()).gids.find(ip).map(|(_, entry)| entry.ifindex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_shares_the_addresses_that_are_named_and_never_loopback() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(!Gateway::default().shares(ip("198.18.7.1")));
        let gateway = Gateway::sharing(["198.18.7.1", "127.0.0.1", "::1"].map(ip).to_vec());
        assert!(gateway.shares(ip("198.18.7.1")));
        for other in ["198.18.7.2", "127.0.0.1", "::1", "0.0.0.0"] {
            assert!(!gateway.shares(ip(other)), "{other}");
        }
    }
}
