//! The ports of a device as programs ask for them.

use super::Device;
use crate::adapter::caps::{GidEntry, PortAttr};
use crate::fabric::lan::is_of_ethernet;
use std::net::IpAddr;
use transport::Result;

impl Device {
    /// Port attributes.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a port that does not exist.
    pub fn port(&self, port: u32) -> Result<PortAttr> {
        self.adapter.port(port)
    }

    /// All entries of a port's GID table.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a port that does not exist.
    pub fn gids(&self, port: u32) -> Result<Vec<GidEntry>> {
        self.adapter.gids(port)
    }

    /// One entry of a port's GID table; `None` for an empty place.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a port or index that does not exist.
    pub fn gid(&self, port: u32, index: u32) -> Result<Option<GidEntry>> {
        self.adapter.gid(port, index)
    }

    /// A port's P_Key.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) for a port or index that does not exist.
    pub fn pkey(&self, port: u32, index: u32) -> Result<u16> {
        self.adapter.pkey(port, index)
    }

    /// Whether what is sent to an address of the host's is for this device: where it is on some of
    /// the interfaces only, that is not so for the addresses of the others.
    pub fn takes(&self, destination: IpAddr) -> bool {
        self.adapter.takes(destination)
    }

    /// Whether a port of the user's Ethernets has an address as its own: what is sent there comes
    /// to it, even where the host has the address as well.
    pub fn is_of_ethernet(&self, ip: IpAddr) -> bool {
        is_of_ethernet(&self.adapter.registry, ip)
    }
}
