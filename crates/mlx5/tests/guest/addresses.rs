//! Addresses that both a guest and the host have: the function takes what is sent to those that the
//! operator named, and the host's others stay the host's.

use crate::support::ethernet::{mac, set_gid};
use crate::support::{Driver, alone};
use hca::Network;
use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use test_support::{is_root, skip};

/// An address of the host's that no program uses.
const OF_HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 7, 1);

/// The kernel's list of UDP sockets: whether one is bound to an address at `port`.
fn is_bound_to(ip: Ipv4Addr, port: u16) -> bool {
    let sockets = std::fs::read_to_string("/proc/thread-self/net/udp").unwrap();
    sockets.contains(&format!(": {:08X}:{port:04X}", u32::from_ne_bytes(ip.octets())))
}

/// A guest that has the address, on an adapter that may share `named` with the host.
fn guest_at(ip: Ipv4Addr, named: &[IpAddr]) -> (Driver, u16) {
    let options = alone("addresses");
    let network = Network::Ethernet { host_addresses: named.to_vec() };
    let mut driver = Driver::on_network("addresses", &options, network);
    let own = mac(&mut driver);
    set_gid(&mut driver, ip.to_ipv6_mapped().octets(), own);
    (driver, options.port)
}

/// A host whose loopback interface is up.
fn host() -> test_support::Network {
    let host = test_support::Network::new("ip link set lo up").unwrap();
    host.enter();
    host
}

fn host_gets_address() {
    let address = format!("{OF_HOST}/32");
    let done = Command::new("ip").args(["addr", "add", &address, "dev", "lo"]).status();
    assert!(done.unwrap().success());
}

/// A guest says which addresses it has; the host's stay the host's.
#[test]
fn a_gid_takes_no_loopback_address() {
    let localhost = Ipv4Addr::LOCALHOST;
    for named in [&[][..], &[localhost.into()]] {
        let (_driver, port) = guest_at(localhost, named);
        assert!(!is_bound_to(localhost, port), "{named:?}");
    }
}

#[test]
fn a_gid_takes_an_address_of_the_host_that_the_operator_named() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    let _host = host();
    host_gets_address();
    let other = Ipv4Addr::new(198, 18, 7, 2).into();
    for (named, taken) in [(&[][..], false), (&[other], false), (&[other, OF_HOST.into()], true)] {
        let (_driver, port) = guest_at(OF_HOST, named);
        assert_eq!(is_bound_to(OF_HOST, port), taken, "{named:?}");
    }
}

#[test]
fn an_address_that_the_host_gets_later_is_taken_likewise() {
    if !is_root() {
        skip!("network namespaces need root");
    }
    let _host = host();
    let (_stays, unnamed) = guest_at(OF_HOST, &[]);
    let (shares, named) = guest_at(OF_HOST, &[OF_HOST.into()]);
    assert!(!is_bound_to(OF_HOST, named), "the host does not have it");
    host_gets_address();
    shares.poll("the address", || is_bound_to(OF_HOST, named).then_some(()));
    assert!(!is_bound_to(OF_HOST, unnamed));
}
