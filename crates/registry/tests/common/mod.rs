//! Real processes for the tests: the test binary runs itself as children that obey lines on their
//! standard input, and the parent sends real datagrams.
#![allow(dead_code, reason = "each test binary uses a part")]

use registry::{CLAIM_JOINING, Client, Error, Grant, Identity, Options, QPN_INDEX_BITS, Role};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

const CHILD: &str = "PEERDMA_REGISTRY_CHILD";
static NEXT: AtomicU16 = AtomicU16::new(0);

/// A place of its own for a test: port and name.
#[derive(Clone)]
pub struct Rendezvous {
    pub port: u16,
    suffix: String,
}

impl Rendezvous {
    pub fn new() -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let pid = std::process::id();
        let port = 10_000 + ((pid * 32 + u32::from(n)) % 20_000) as u16;
        Rendezvous { port, suffix: format!("test-{pid}-{n}") }
    }

    pub fn options(&self) -> Options {
        Options { port: self.port, name_suffix: Some(self.suffix.clone()) }
    }

    pub fn connect(&self) -> Arc<Client> {
        Client::connect_at(Role::Member, &self.options()).unwrap()
    }

    pub fn child(&self) -> Child {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_process", "--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{} {}", self.port, self.suffix))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Child { process, input, output }
    }

    /// A child that has joined, and its slot.
    pub fn member(&self) -> (Child, u16) {
        let mut child = self.child();
        assert_eq!(child.ask("connect member"), "ok");
        let slot = child.join();
        (child, slot)
    }

    /// Sends a datagram with a BTH for a queue pair of a slot.
    pub fn send(&self, slot: u16, tag: u32) {
        self.send_to("127.0.0.1", slot, tag);
    }

    pub fn send_to(&self, ip: &str, slot: u16, tag: u32) {
        // From the port, since sockets drop what others on this host send, but beside the group
        // that is steered; IPv6 has one loopback address only, so there a socket is the group's
        // last for this moment.
        let (family, from) = match ip {
            "127.0.0.1" => (AddressFamily::INET, "127.0.0.99"),
            _ => (AddressFamily::INET6, "::"),
        };
        let socket = rustix::net::socket(family, SocketType::DGRAM, None).unwrap();
        if family == AddressFamily::INET6 {
            rustix::net::sockopt::set_ipv6_v6only(&socket, true).unwrap();
        }
        rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
        let from = SocketAddr::new(from.parse().unwrap(), self.port);
        rustix::net::bind(&socket, &from).unwrap();
        UdpSocket::from(socket).send_to(&packet(slot, tag), (ip, self.port)).unwrap();
    }
}

pub fn packet(slot: u16, tag: u32) -> [u8; 24] {
    let mut bytes = [0; 24];
    let qpn = u32::from(slot) << QPN_INDEX_BITS | 0x155;
    bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
    bytes[20..].copy_from_slice(&tag.to_be_bytes());
    bytes
}

pub fn memfd(content: &str) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(fd);
    file.write_all(content.as_bytes()).unwrap();
    file.into()
}

pub fn content(fd: OwnedFd) -> String {
    let mut file = File::from(fd);
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    text
}

pub fn identity(device: &str) -> Identity {
    Identity { device: device.into(), guid: 0x1234, comm: "test".into() }
}

/// A child process; killed when dropped.
pub struct Child {
    process: std::process::Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Child {
    pub fn tell(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
    }

    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the child is gone");
            if let Some((_, answer)) = line.split_once('@') {
                return answer.trim_end().to_owned();
            }
        }
    }

    pub fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.hear()
    }

    pub fn join(&mut self) -> u16 {
        let answer = self.ask("join");
        answer.strip_prefix("joined ").unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
    }

    /// Tag and slot of the next datagram, waiting this long.
    pub fn receive(&mut self, within: Duration) -> Option<(u16, u32)> {
        let answer = self.ask(&format!("receive {}", within.as_millis()));
        let (slot, tag) = answer.strip_prefix("got ")?.split_once(' ').unwrap();
        Some((slot.parse().unwrap(), tag.parse().unwrap()))
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: a plain system call on our own child.
        assert_eq!(unsafe { libc::kill(self.pid() as i32, signal) }, 0);
        if signal == libc::SIGSTOP {
            // SAFETY: as above; returns when the child has stopped, without reaping it.
            unsafe {
                libc::waitpid(self.pid() as i32, std::ptr::null_mut(), libc::WUNTRACED);
            }
        }
    }

    /// Kills the process and waits for its end.
    pub fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends to a slot until the child there receives it; returns how long that took.
pub fn until_received(place: &Rendezvous, child: &mut Child, slot: u16, tag: u32) -> Duration {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(5) {
        place.send(slot, tag);
        while let Some(got) = child.receive(Duration::from_millis(5)) {
            if got == (slot, tag) {
                return begin.elapsed();
            }
        }
    }
    panic!("slot {slot} receives nothing");
}

/// What a child does; called by the test `child_process` of each binary.
pub fn run_as_child() {
    let Ok(place) = std::env::var(CHILD) else { return };
    let (port, suffix) = place.split_once(' ').unwrap();
    let options = Options { port: port.parse().unwrap(), name_suffix: Some(suffix.to_owned()) };
    let mut state = Served { options, client: None, grants: BTreeMap::new(), kept: Vec::new() };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = state.obey(&words).unwrap_or_else(|e| format!("error {e:?}"));
        println!("@{answer}");
    }
    // Not a return: the harness would print, and destructors would say goodbye.
    std::process::exit(0);
}

struct Served {
    options: Options,
    client: Option<Arc<Client>>,
    grants: BTreeMap<u16, Grant>,
    kept: Vec<OwnedFd>,
}

impl Served {
    fn client(&self) -> &Client {
        self.client.as_ref().unwrap()
    }

    fn obey(&mut self, words: &[&str]) -> Result<String, Error> {
        let ok = || Ok("ok".to_owned());
        match *words {
            ["connect", role] => {
                let role = if role == "member" { Role::Member } else { Role::Observer };
                self.client = Some(Client::connect_at(role, &self.options)?);
                ok()
            }
            ["join"] => {
                let directory = memfd(&format!("directory of {}", std::process::id()));
                let grant = self.client().join(&identity("peerdma0"), directory.as_fd())?;
                let slot = grant.slot;
                self.grants.insert(slot, grant);
                Ok(format!("joined {slot}"))
            }
            ["leave", slot] => {
                self.client().leave(slot.parse().unwrap());
                ok()
            }
            ["receive", within] => Ok(self.receive(within.parse().unwrap())),
            ["members"] => {
                let members = self.client().members()?;
                let text: Vec<String> = members
                    .iter()
                    .map(|m| format!("{}:{}{}", m.slot, m.pid, if m.leader { "*" } else { "" }))
                    .collect();
                Ok(text.join(" "))
            }
            ["directory", slot] => self.client().directory(slot.parse().unwrap()).map(content),
            ["publish", id, text] => {
                self.client().publish(id, memfd(text).as_fd())?;
                ok()
            }
            ["lookup", id] => self.client().lookup(id).map(content),
            ["withdraw", id] => {
                self.client().withdraw(id);
                ok()
            }
            ["claim", slot, key] => {
                self.client().claim(slot.parse().unwrap(), 1, key.parse().unwrap())?;
                ok()
            }
            ["release", key] => {
                self.client().release(1, key.parse().unwrap());
                ok()
            }
            ["claim-joining", slot] => {
                self.client().claim(slot.parse().unwrap(), CLAIM_JOINING, 0)?;
                ok()
            }
            ["release-joining"] => {
                Ok(if self.client().release(CLAIM_JOINING, 0) { "kept" } else { "lost" }.into())
            }
            ["owner", key] => Ok(self.client().owner(1, key.parse().unwrap())?.to_string()),
            ["setuid", uid] => {
                // SAFETY: a plain system call; it changes all threads of this test process.
                assert_eq!(unsafe { libc::setuid(uid.parse().unwrap()) }, 0);
                ok()
            }
            ["squat", uid] => {
                use rustix::net::{
                    AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket,
                };
                // Every name that can be foreseen: listeners whose backlog is full, and deeds.
                let name =
                    format!("peerdma/2/{uid}/{}", self.options.name_suffix.as_ref().unwrap());
                let unix = |kind| socket(AddressFamily::UNIX, kind, None).unwrap();
                let address = |tail: String| {
                    SocketAddrUnix::new_abstract_name(format!("{name}{tail}").as_bytes()).unwrap()
                };
                for generation in 0..16 {
                    let fd = unix(SocketType::SEQPACKET);
                    let at = address(match generation {
                        0 => String::new(),
                        generation => format!("/g{generation}"),
                    });
                    bind(&fd, &at).unwrap();
                    listen(&fd, 0).unwrap();
                    let caller = unix(SocketType::SEQPACKET);
                    connect(&caller, &at).unwrap();
                    self.kept.extend([fd, caller]);
                }
                for slot in 1..1024 {
                    let fd = unix(SocketType::DGRAM);
                    bind(&fd, &address(format!("/slot/{slot}"))).unwrap();
                    self.kept.push(fd);
                }
                ok()
            }
            ["crowd", count] => {
                // Connections that never say or read anything, after a hello that fills the way
                // back.
                for _ in 0..count.parse().unwrap() {
                    self.kept.push(silent(&self.options));
                }
                ok()
            }
            ["fork"] => {
                // SAFETY: the child only calls `abandon`, which takes no lock, and sleeps until
                // killed.
                match unsafe { libc::fork() } {
                    0 => {
                        self.client().abandon();
                        self.grants.clear();
                        if self.client().members() != Err(Error::Abandoned) {
                            // SAFETY: ends this process at once.
                            unsafe { libc::_exit(1) }
                        }
                        self.client = None;
                        // SAFETY: dies with its parent's parent, the test, at the latest.
                        unsafe {
                            libc::prctl(libc::PR_SET_PDEATHSIG, 0);
                            libc::alarm(20);
                            libc::pause();
                            libc::_exit(0)
                        }
                    }
                    pid => Ok(pid.to_string()),
                }
            }
            ["daemon"] => {
                assert!(self.client().pause(Instant::now() + Duration::from_secs(2)));
                // SAFETY: the child goes on with this thread alone, as after `daemon(3)`; the
                // parent only ends.
                match unsafe { libc::fork() } {
                    0 => {
                        self.client().adopt()?;
                        Ok(std::process::id().to_string())
                    }
                    // SAFETY: as above.
                    _ => unsafe { libc::_exit(0) },
                }
            }
            ["pause"] => {
                assert!(self.client().pause(Instant::now() + Duration::from_secs(2)));
                self.client().resume();
                ok()
            }
            ["drop"] => {
                self.client = None;
                ok()
            }
            _ => panic!("{words:?}"),
        }
    }

    fn receive(&self, within: u64) -> String {
        let sockets = self.grants.iter().flat_map(|(slot, grant)| {
            [&grant.v4, &grant.v6].into_iter().flatten().map(move |fd| (slot, fd))
        });
        let sockets: Vec<_> = sockets.collect();
        let mut fds: Vec<_> =
            sockets.iter().map(|(_, fd)| PollFd::new(*fd, PollFlags::IN)).collect();
        let within = Duration::from_millis(within);
        let timeout =
            Timespec { tv_sec: within.as_secs() as _, tv_nsec: within.subsec_nanos().into() };
        poll(&mut fds, Some(&timeout)).unwrap();
        for ((slot, fd), polled) in sockets.iter().zip(&fds) {
            if polled.revents().contains(PollFlags::IN) {
                let mut bytes = [0; 64];
                let flags = rustix::net::RecvFlags::DONTWAIT;
                let (_, len) = rustix::net::recv(fd, &mut bytes[..], flags).unwrap();
                if len != 24 {
                    return format!("strange {len}");
                }
                let tag = u32::from_be_bytes(bytes[20..24].try_into().unwrap());
                return format!("got {slot} {tag}");
            }
        }
        "nothing".into()
    }
}

fn silent(options: &Options) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    let uid = rustix::process::geteuid().as_raw();
    let name = format!("peerdma/2/{uid}/{}", options.name_suffix.as_deref().unwrap());
    let fd = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&fd, &SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap()).unwrap();
    fd
}
