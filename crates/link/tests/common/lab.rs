//! Two network namespaces joined by a veth pair.

use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use std::os::fd::OwnedFd;
use std::process::Command;
use test_support::{Network, is_root, note_skip};

/// The two namespaces: `a` has `va` with 10.77.0.1, fd77::1 and fe80::1, `b` has `vb` with
/// 10.77.0.2, fd77::2 and fe80::2.
pub struct Lab {
    pub a: Network,
    pub b: Network,
}

/// Runs `test` in a thread of its own, which may change namespaces. Skips, and says so, without
/// root.
pub fn in_lab(test: impl FnOnce(&Lab) + Send + 'static) {
    if !is_root() {
        return note_skip("network namespaces need root");
    }
    let run = move || {
        // Addresses that are made here only, and usable at once.
        let network =
            || Network::new("echo 1 > /proc/sys/net/ipv6/conf/default/addr_gen_mode").unwrap();
        let lab = Lab { a: network(), b: network() };
        lab.a.enter();
        let there = lab.b.pid();
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
    // Of the same name, under which a skip is noted.
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    let thread = std::thread::Builder::new().name(name).spawn(run).unwrap();
    if let Err(panic) = thread.join() {
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
