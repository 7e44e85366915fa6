//! The wire as others see it: captures of real packets, dissected by Wireshark's tshark, their ICRC recomputed by an
//! independent program.

use std::path::Path;
use std::process::Command;
use system::{Namespace, Run, is_root, pair, port, skip, veth_pair};

/// A capture on an interface; ends with the value.
struct Capture {
    running: system::Running,
    file: std::path::PathBuf,
    _folder: tempfile::TempDir,
}

impl Capture {
    fn start(namespace: &Namespace, interface: &str) -> Capture {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("capture.pcap");
        let running = Run::plain(&format!(
            "tcpdump -i {interface} -s 0 -U -B 65536 -Z root -w {} udp port 4791",
            file.display()
        ))
        .within(namespace)
        .start();
        // tcpdump writes the file's header once it captures.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while std::fs::metadata(&file).map_or(0, |m| m.len()) < 24 {
            assert!(std::time::Instant::now() < deadline, "tcpdump does not start");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        Capture { running, file, _folder: folder }
    }

    fn stop(self) -> (std::path::PathBuf, tempfile::TempDir) {
        self.running.signal(rustix::process::Signal::INT);
        self.running.finish();
        (self.file, self._folder)
    }
}

fn check_icrc(file: &Path, least: u32) {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/icrc_check.py");
    let output = Command::new("python3")
        .arg(tool)
        .arg(file)
        .args(["--min", &least.to_string()])
        .output()
        .expect("python3");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
}

fn dissect(file: &Path) {
    let output = Command::new("tshark")
        .args(["-r"])
        .arg(file)
        .args(["-Y", "_ws.malformed || !infiniband", "-T", "fields", "-e", "frame.number"])
        .output()
        .expect("tshark");
    let bad = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(bad.trim().is_empty(), "malformed frames: {}", bad.trim());
}

/// Traffic of every kind between two hosts, over the given family.
fn traffic(left: &Namespace, right: &Namespace, gid: u32, address: &str) {
    for (program, switches) in [
        ("ib_write_bw", "-s 20000 -n 20 -t 4"),
        ("ib_read_bw", "-s 20000 -n 20"),
        ("ib_send_bw", "-s 5000 -n 50 -c RC"),
        ("ib_send_bw", "-s 1024 -n 50 -c UD"),
        ("ib_write_bw", "-s 5000 -n 20 -c UC"),
        ("ib_atomic_bw", "-n 20"),
    ] {
        let port = port();
        let line = format!("{program} -d peerdma0 -x {gid} -F -p {port} {switches}");
        let server = Run::hca(&line).within(left);
        let client = Run::hca(&line).within(right).arg(address);
        pair(server, Some(left), client, port);
    }
}

#[test]
fn real_packets_are_well_formed_and_their_icrc_is_right() {
    for tool in ["tshark", "tcpdump", "ib_write_bw", "python3"] {
        if !system::has(tool) {
            skip!("{tool} is not installed");
        }
    }
    if !is_root() {
        skip!("captures and namespaces need root");
    }
    let (left, right) = veth_pair("wire", 1500);
    for namespace in [&left, &right] {
        // Without this a capture shows whole trains instead of the packets that a real link carries.
        namespace.output("ip link set wire gso_max_segs 1");
    }
    let capture = Capture::start(&left, "wire");
    traffic(&left, &right, 0, "198.18.9.1");
    traffic(&left, &right, 1, "198.18.9.1");
    let (file, _folder) = capture.stop();
    check_icrc(&file, 500);
    dissect(&file);
}
