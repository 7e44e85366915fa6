//! Captures of packets and what others make of them: Wireshark's tshark dissects, an independent
//! program recomputes each ICRC.

use crate::{Namespace, Run, Running};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// What tshark may take a payload for (`tshark -G heuristic-decodes`): some of these stumble over
/// short random data.
const PAYLOAD_GUESSES: [&str; 9] = [
    "smc",
    "smb_direct",
    "rpcordma",
    "nvme-rdma",
    "lnet",
    "iser",
    "infiniband.eoib",
    "infiniband_sdp",
    "fcoib",
];

/// Packets of a capture whose ICRC is judged. More would say nothing new, and take minutes: a guest
/// that brings pages in slowly has the same packets sent again and again.
const MOST_JUDGED: usize = 300_000;

/// Sends a frame of a type for local experiments (IEEE Std 802-2014, 9.2.3) through an interface.
const SEND_MARK: &str = "import socket, sys
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
packets.bind((sys.argv[1], 0))
packets.send(bytes(12) + b'\\x88\\xb5' + sys.argv[2].encode())";
const MARK: &str = "What was sent before this frame is in the capture.";
/// What precedes a frame's bytes in a capture: its record's header, two addresses and the type.
const BEFORE_MARK: usize = 16 + 14;

/// A capture of RoCEv2 packets on an interface. Ends with the value.
pub struct Capture<'a> {
    dumpcap: Running,
    namespace: &'a Namespace,
    interface: &'a str,
    folder: TempDir,
}

impl<'a> Capture<'a> {
    /// Captures from now on. Needs root, dumpcap (package tshark) and Python.
    ///
    /// # Panics
    /// When it cannot.
    pub fn start(namespace: &'a Namespace, interface: &'a str) -> Capture<'a> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("capture.pcap");
        let line = format!("dumpcap -q -P -i {interface} -B 64 -w {} -f", file.display());
        let filter = "udp port 4791 or ether proto 0x88b5";
        let dumpcap = Run::plain(&line).arg(filter).within(namespace);
        // As long as what is captured takes.
        let dumpcap = dumpcap.limit(Duration::from_secs(600)).start();
        let mut capture = Capture { dumpcap, namespace, interface, folder };
        // dumpcap writes the file's header once it captures.
        let headed = |file: &Path| std::fs::metadata(file).is_ok_and(|m| m.len() >= 24);
        capture.dumpcap.until("no capture", |_| headed(&file));
        capture
    }

    /// Ends it and gives what was captured until now.
    ///
    /// # Panics
    /// When packets were lost on the way into the file.
    pub fn stop(mut self) -> Packets {
        let file = self.folder.path().join("capture.pcap");
        let end = self.caught_up(&file);
        self.dumpcap.signal(rustix::process::Signal::INT);
        let ended = self.dumpcap.finish();
        assert!(ended.stderr.contains("dropped on interface"), "{ended}");
        assert!(ended.stderr.contains("/0 ("), "the capture has holes: {ended}");
        let cut = File::options().write(true).open(&file).and_then(|file| file.set_len(end));
        cut.expect("the capture is cut");
        Packets { file, _folder: Some(self.folder) }
    }

    /// Waits until all that was sent so far is in the file, which the kernel hands over late, and
    /// not at all to who is interrupted before. Gives where in the file that ends.
    fn caught_up(&mut self, file: &Path) -> u64 {
        let from = std::fs::metadata(file).expect("the capture").len();
        let send = Run::plain("python3 -c").arg(SEND_MARK).arg(self.interface).arg(MARK);
        send.within(self.namespace).finish().ok();
        let mark = || {
            let mut file = File::open(file).ok()?;
            file.seek(SeekFrom::Start(from)).ok()?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).ok()?;
            let at = bytes.windows(MARK.len()).position(|bytes| bytes == MARK.as_bytes())?;
            Some(from + u64::try_from(at.checked_sub(BEFORE_MARK)?).ok()?)
        };
        self.dumpcap.until("the capture does not catch up", |_| mark().is_some());
        mark().expect("it was there")
    }
}

/// A file of captured packets.
pub struct Packets {
    file: PathBuf,
    _folder: Option<TempDir>,
}

impl Packets {
    /// Those of an existing file.
    pub fn of(file: &Path) -> Packets {
        Packets { file: file.to_owned(), _folder: None }
    }

    /// Fails the test unless there are at least `least` packets, each of the first
    /// 300,000 with a right ICRC.
    ///
    /// # Panics
    /// As it says.
    #[track_caller]
    pub fn assert_icrcs(&self, least: usize) {
        let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/icrc_check.py");
        let output = Command::new("python3")
            .arg(tool)
            .arg(&self.file)
            .args(["--min", &least.to_string(), "--most", &MOST_JUDGED.to_string()])
            .output()
            .expect("python3");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Fails the test when tshark finds a packet malformed or not RoCEv2.
    ///
    /// # Panics
    /// As it says.
    #[track_caller]
    pub fn assert_well_formed(&self) {
        let bad = self.tshark(&["-Y", "_ws.malformed || !infiniband"]);
        assert!(bad.trim().is_empty(), "malformed or foreign:\n{bad}");
    }

    /// How many packets there are of each kind, by the values that tshark finds in `fields`.
    ///
    /// # Panics
    /// When tshark fails.
    pub fn count_by(&self, fields: &[&str]) -> BTreeMap<String, usize> {
        let mut arguments = vec!["-T", "fields", "-E", "separator=/s"];
        for field in fields {
            arguments.extend(["-e", field]);
        }
        let mut counts = BTreeMap::new();
        for line in self.tshark(&arguments).lines() {
            *counts.entry(line.trim().to_owned()).or_default() += 1;
        }
        counts
    }

    fn tshark(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tshark");
        command.args(["-n", "-r"]).arg(&self.file).args(arguments);
        for guess in PAYLOAD_GUESSES {
            command.args(["--disable-protocol", guess]);
        }
        let output = command.output().expect("tshark");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
