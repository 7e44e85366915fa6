//! Network namespaces that end with whoever made them, and the one that all tests of a program
//! share.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// A network namespace. A child process holds it, which ends with its standard input: nothing is
/// left however a test ends.
#[derive(Debug)]
pub struct Network {
    holder: Child,
    file: File,
}

impl Network {
    /// A fresh namespace in which `script` of sh(1) has run. Needs root.
    ///
    /// # Errors
    /// When this user, or this kernel, makes none, and when the script fails.
    pub fn new(script: &str) -> io::Result<Network> {
        let holding = format!("{{ {script}; }} >&2 && echo && exec cat");
        let mut holder = Command::new("unshare")
            .args(["--net", "sh", "-c", &holding])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let output = holder.stdout.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        BufReader::new(output).read_line(&mut line)?;
        if line != "\n" {
            let output = holder.wait_with_output()?;
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(io::Error::other(format!("no network namespace: {}", said.trim())));
        }
        let file = File::open(format!("/proc/{}/ns/net", holder.id()))?;
        Ok(Network { holder, file })
    }

    /// Moves the calling thread in; so are the threads and programs that it starts from now on.
    ///
    /// # Panics
    /// When this user may not: who could make the namespace may enter it.
    pub fn enter(&self) {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))
            .unwrap_or_else(|error| panic!("entering a network namespace: {error}"));
    }

    /// A process inside, for `ip link set … netns PID` and for its files in `/proc`.
    pub fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// Words that run the words after them inside.
    pub fn words(&self) -> [OsString; 2] {
        ["nsenter".into(), format!("--net=/proc/{}/ns/net", self.pid()).into()]
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The network of this test program, with nothing but its loopback interface, made when first asked
/// for; `None` for a user who may not make one. UDP port 4791 is one user's in a network: here it
/// is the test program's, whoever has it on the machine.
pub fn own() -> Option<&'static Network> {
    static OWN: OnceLock<Option<Network>> = OnceLock::new();
    OWN.get_or_init(|| {
        let made = Network::new("ip link set lo up");
        made.inspect_err(|error| eprintln!("the tests share the machine's network: {error}")).ok()
    })
    .as_ref()
}

/// Moves the calling thread into [`own`]; it stays where it is for a user who may not make one.
pub fn enter() {
    if let Some(network) = own() {
        network.enter();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{is_root, skip};
    use std::net::UdpSocket;

    #[test]
    fn a_port_that_the_machine_has_is_free_inside() {
        if !is_root() {
            skip!("network namespaces need root");
        }
        let held = UdpSocket::bind("127.0.0.1:0").expect("a port");
        let address = held.local_addr().expect("its address");
        UdpSocket::bind(address).expect_err("it is held");
        enter();
        let inside = UdpSocket::bind(address).expect("free inside");
        assert_eq!(inside.send_to(b"x", address).expect("the loopback interface is up"), 1);
        std::thread::spawn(move || UdpSocket::bind(address).expect_err("threads are inside too"))
            .join()
            .expect("a thread");
    }

    #[test]
    fn a_script_that_fails_is_told_of() {
        if !is_root() {
            skip!("network namespaces need root");
        }
        let error = Network::new("echo no such luck; false").expect_err("it failed");
        assert!(error.to_string().contains("no such luck"), "{error}");
    }

    #[test]
    fn it_ends_with_its_value() {
        if !is_root() {
            skip!("network namespaces need root");
        }
        let network = Network::new("true").expect("a namespace");
        let pid = network.pid();
        drop(network);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
