//! Two network namespaces joined by a veth pair. They live in two child processes that end with their
//! standard input, so nothing is left behind however a test ends.

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};

/// A network namespace.
pub struct Namespace {
    holder: Child,
    file: File,
}

impl Namespace {
    fn new() -> Namespace {
        // Addresses that are made here only, and usable at once.
        let script = "cd /proc/sys/net/ipv6/conf; echo 1 > default/addr_gen_mode; echo; exec cat";
        let mut holder = Command::new("unshare")
            .args(["-n", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "\n", "unshare -n failed");
        let file = File::open(format!("/proc/{}/ns/net", holder.id())).unwrap();
        Namespace { holder, file }
    }

    /// Moves the calling thread in.
    pub fn enter(&self) {
        move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The two namespaces: `a` has `va` with 10.77.0.1, fd77::1 and fe80::1, `b` has `vb` with 10.77.0.2,
/// fd77::2 and fe80::2.
pub struct Lab {
    pub a: Namespace,
    pub b: Namespace,
}

/// Runs `test` in a thread of its own, which may change namespaces. Skips, and says so, without root.
pub fn in_lab(test: impl FnOnce(&Lab) + Send + 'static) {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: network namespaces need root");
        return;
    }
    let run = move || {
        let lab = Lab { a: Namespace::new(), b: Namespace::new() };
        lab.a.enter();
        let there = lab.b.holder.id().to_string();
        ip(&format!("link add va type veth peer name vb netns {there}"));
        for (namespace, device, number) in [(&lab.a, "va", 1), (&lab.b, "vb", 2)] {
            namespace.enter();
            ip(&format!("addr add 10.77.0.{number}/24 dev {device}"));
            ip(&format!("addr add fd77::{number}/64 dev {device} nodad"));
            ip(&format!("addr add fe80::{number}/64 dev {device} nodad"));
        }
        for (namespace, device) in [(&lab.a, "va"), (&lab.b, "vb")] {
            namespace.enter();
            ip("link set lo up");
            ip(&format!("link set {device} up"));
        }
        for (namespace, device) in [(&lab.a, "va"), (&lab.b, "vb")] {
            namespace.enter();
            wait_for_carrier(device);
        }
        test(&lab);
    };
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

/// The kernel tells of a carrier from a work queue, some time after both ends are up.
fn wait_for_carrier(device: &str) {
    let args = ["-o", "link", "show", "dev", device];
    let state = || Command::new("ip").args(args).output().unwrap().stdout;
    let up = (0..1000).any(|_| String::from_utf8_lossy(&state()).contains("state UP"));
    assert!(up, "{device} has no carrier");
}

/// Runs `ip` in the calling thread's namespace.
pub fn ip(args: &str) {
    command("ip", args);
}

/// Runs a command in the calling thread's namespace.
pub fn command(program: &str, args: &str) {
    let status = Command::new(program).args(args.split_whitespace()).status().unwrap();
    assert!(status.success(), "{program} {args}: {status}");
}

/// Frames of all interfaces of a namespace, from the moment of its making.
pub struct Capture(OwnedFd);

impl Capture {
    /// Captures in the calling thread's namespace.
    pub fn new() -> Capture {
        let all =
            Protocol::from_raw(u32::from((libc::ETH_P_ALL as u16).to_be()).try_into().unwrap());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Capture(socket_with(AddressFamily::PACKET, SocketType::RAW, flags, Some(all)).unwrap())
    }

    /// UDP datagrams to port 4791 that were captured, as Ethernet frames.
    pub fn roce_frames(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; 1 << 17];
        while let Ok((len, _)) = recv(&self.0, &mut buffer, RecvFlags::empty()) {
            let udp = match buffer[12..14] {
                [0x08, 0x00] if buffer[23] == 17 => 34,
                [0x86, 0xdd] if buffer[20] == 17 => 54,
                _ => continue,
            };
            if buffer[udp + 2..udp + 4] == wire::ROCE_PORT.to_be_bytes() {
                frames.push(buffer[..len].to_vec());
            }
        }
        frames
    }
}

/// Writes Ethernet frames as a capture file.
pub fn write_pcap(path: &std::path::Path, frames: &[Vec<u8>]) {
    let mut out = Vec::new();
    for word in [0xa1b2_c3d4u32, 2 | 4 << 16, 0, 0, 1 << 18, 1] {
        out.extend(word.to_le_bytes());
    }
    for frame in frames {
        let len = frame.len() as u32;
        for word in [0, 0, len, len] {
            out.extend(word.to_le_bytes());
        }
        out.extend(frame);
    }
    std::fs::write(path, out).unwrap();
}
