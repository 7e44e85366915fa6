//! What the connection manager claims at the registry: ports and services.

use cma::{Claim, ClaimKind, Claims, Error};
use registry::{CLAIM_PORT, CLAIM_SERVICE, Client};
use std::net::IpAddr;
use std::time::Instant;

/// Claims at the registry.
pub struct Registry<'a> {
    pub client: &'a Client,
    /// The slot that requests to an address come to; none where the device is not open.
    pub slot: &'a dyn Fn(IpAddr) -> Option<u16>,
    /// When to give up giving back, for a program that ends; otherwise the client's own limit holds
    /// for each claim.
    pub deadline: Option<Instant>,
}

impl Registry<'_> {
    fn name((kind, service, ip): Claim) -> (u32, u64) {
        let kind = match kind {
            ClaimKind::Port => CLAIM_PORT,
            ClaimKind::Service => CLAIM_SERVICE,
        };
        (kind, service << 32 | u64::from(registry::fold(ip)))
    }
}

impl Claims for Registry<'_> {
    fn claim(&self, claim: Claim) -> Result<(), Error> {
        let (kind, key) = Registry::name(claim);
        let slot = (self.slot)(claim.2).ok_or(Error::NODEV)?;
        self.client.claim(slot, kind, key).map_err(|error| {
            crate::log!("{error}");
            match error {
                registry::Error::Taken => Error::ADDRINUSE,
                registry::Error::Full(_) => Error::NOMEM,
                registry::Error::Timeout => Error::TIMEDOUT,
                _ => Error::NODEV,
            }
        })
    }

    fn release(&self, claim: Claim) {
        let (kind, key) = Registry::name(claim);
        match self.deadline {
            None => self.client.release(kind, key),
            Some(deadline) => self.client.release_by(deadline, kind, key),
        };
    }
}
