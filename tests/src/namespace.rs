//! Network namespaces of a test: hosts on one machine, gone with the value.

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// A fresh namespace with its loopback up. Needs root.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(label: &str) -> Namespace {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("pd-{label}-{}-{number}", std::process::id());
        sh(&format!("ip netns add {name} && ip -n {name} link set lo up"));
        Namespace { name }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs a shell line inside and gives its output.
    ///
    /// # Panics
    /// When it fails.
    pub fn output(&self, line: &str) -> String {
        sh(&format!("ip netns exec {} sh -c '{line}'", self.name))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).status();
    }
}

/// Two namespaces joined by a veth pair: 198.18.9.1/2, fd09::1/2 and fe80::1/2 on interface `wire`.
///
/// The addresses are all there before anyone looks: the kernel's own link-local address comes some
/// seconds after the wire, and a program that waits for an event of its own would be told of that.
///
/// # Panics
/// When they cannot be made.
pub fn veth_pair(label: &str, mtu: u32) -> (Namespace, Namespace) {
    let (left, right) = (Namespace::new(label), Namespace::new(label));
    let (a, b) = (left.name(), right.name());
    sh(&format!("ip -n {a} link add wire mtu {mtu} type veth peer name wire netns {b} mtu {mtu}"));
    for (name, host) in [(a, 1), (b, 2)] {
        sh(&format!(
            "ip -n {name} link set wire addrgenmode none && \
             ip -n {name} addr add 198.18.9.{host}/24 dev wire && \
             ip -n {name} -6 addr add fd09::{host}/64 dev wire nodad && \
             ip -n {name} -6 addr add fe80::{host}/64 dev wire nodad && \
             ip -n {name} link set wire up"
        ));
    }
    (left, right)
}

pub(crate) fn sh(line: &str) -> String {
    let output = Command::new("sh").args(["-c", line]).output().expect("a shell");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr).trim());
    String::from_utf8_lossy(&output.stdout).into_owned()
}
