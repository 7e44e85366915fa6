//! The addresses that requests are taken at.

use crate::platform::place;
use engine_thread::lock;
use link::{Interfaces, Watch, addresses_on};
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Mutex;

/// The addresses of this host that devices of the platform have, opened or not: messages for all of
/// them come to whichever device's connection manager the service is claimed for.
pub struct Addresses {
    watch: Option<Watch>,
    known: Mutex<Known>,
}

struct Known {
    interfaces: Interfaces,
    addresses: HashSet<IpAddr>,
    /// The host's addresses may be others since they were read.
    stale: bool,
}

impl Known {
    fn refresh(&mut self) {
        let read = addresses_on(&self.interfaces);
        self.stale = read.is_err();
        if let Ok(addresses) = read {
            self.addresses = addresses;
        }
    }
}

impl Addresses {
    /// `None` where the devices have all that the host has.
    pub fn of_devices() -> Option<Addresses> {
        Addresses::on(place::hcas().ok()?.iter().map(place::interfaces))
    }

    fn on(each: impl Iterator<Item = Interfaces>) -> Option<Addresses> {
        // One that names no interfaces has all that no other names.
        let named = each.map(|interfaces| match interfaces {
            Interfaces::Only(names) => Some(names),
            Interfaces::AllBut(_) => None,
        });
        let names = named.collect::<Option<Vec<_>>>()?.concat();
        // Listening comes first: nothing happens unheard between the two.
        let watch = Watch::open().ok();
        let interfaces = Interfaces::Only(names);
        let mut known = Known { interfaces, addresses: HashSet::new(), stale: true };
        known.refresh();
        Some(Addresses { watch, known: Mutex::new(known) })
    }

    /// Whether an address is one of them now.
    pub fn have(&self, ip: IpAddr) -> bool {
        let mut known = lock(&self.known);
        if self.watch.as_ref().is_none_or(Watch::changed) || known.stale {
            known.refresh();
        }
        known.addresses.contains(&ip.to_canonical())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use test_support::{Network, is_root, skip};

    fn only(name: &str) -> Interfaces {
        Interfaces::Only(vec![name.to_owned()])
    }

    #[test]
    fn a_device_without_interfaces_of_its_own_has_what_is_left() {
        let rest = Interfaces::AllBut(vec!["wire0".to_owned()]);
        assert!(Addresses::on([only("wire0"), rest].into_iter()).is_none());
        assert!(Addresses::on([Interfaces::default()].into_iter()).is_none());
    }

    #[test]
    fn an_address_of_any_device_is_known_and_of_none_is_not() {
        if !is_root() {
            skip!("network namespaces need root");
        }
        let add = |number: u32| {
            format!("ip addr add 10.9.{number}.1/24 dev wire{number}; ip link set wire{number} up")
        };
        let wires: Vec<String> = (0..3)
            .map(|number| {
                format!("ip link add wire{number} type veth peer name far{number}; {}", add(number))
            })
            .collect();
        let host = Network::new(&wires.join("; ")).unwrap();
        host.enter();
        let addresses = Addresses::on([only("wire0"), only("wire1")].into_iter()).unwrap();
        let have = |ip: &str| addresses.have(ip.parse().unwrap());
        assert!(have("10.9.0.1") && have("10.9.1.1") && have("::ffff:10.9.1.1"));
        assert!(!have("10.9.2.1") && !have("127.0.0.1") && !have("10.9.1.2"));
        let later = ["addr", "add", "10.9.1.2/24", "dev", "wire1"];
        assert!(Command::new("ip").args(later).status().unwrap().success());
        assert!(have("10.9.1.2"), "an address that came later");
    }

    #[test]
    fn however_many_addresses_a_device_has_those_of_the_next_are_known() {
        if !is_root() {
            skip!("network namespaces need root");
        }
        let wires = "ip link add wire0 type veth peer name wire1
            for net in 0 1; do for host in $(seq 1 150); do
                echo addr add 10.9.$net.$host/16 dev wire0
            done; done | ip -batch -
            ip addr add 10.8.0.1/16 dev wire1
            ip link set wire0 up; ip link set wire1 up";
        let host = Network::new(wires).unwrap();
        host.enter();
        let addresses = Addresses::on([only("wire0"), only("wire1")].into_iter()).unwrap();
        for ip in ["10.9.0.1", "10.9.1.150", "10.8.0.1"] {
            assert!(addresses.have(ip.parse().unwrap()), "{ip}");
        }
        assert!(!addresses.have("10.9.1.151".parse().unwrap()));
    }
}
