//! Captures of packets and what others make of them: Wireshark's tshark dissects, an independent
//! program recomputes each ICRC.

use crate::{Namespace, Run, Running};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
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

/// A capture of RoCEv2 packets on an interface. Ends with the value.
pub struct Capture {
    dumpcap: Running,
    folder: TempDir,
}

impl Capture {
    /// Captures from now on. Needs root, and dumpcap (package tshark).
    ///
    /// # Panics
    /// When it cannot.
    pub fn start(namespace: &Namespace, interface: &str) -> Capture {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("capture.pcap");
        let line = format!("dumpcap -q -P -i {interface} -B 64 -w {} -f", file.display());
        let dumpcap = Run::plain(&line).arg("udp port 4791").within(namespace).start();
        let mut capture = Capture { dumpcap, folder };
        // dumpcap writes the file's header once it captures.
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::fs::metadata(&file).map_or(0, |m| m.len()) < 24 {
            let said = capture.dumpcap.said();
            assert!(Instant::now() < deadline && capture.dumpcap.alive(), "no capture: {said}");
            std::thread::sleep(Duration::from_millis(10));
        }
        capture
    }

    /// Ends it and gives what was captured.
    ///
    /// # Panics
    /// When packets were lost on the way into the file.
    pub fn stop(self) -> Packets {
        self.dumpcap.signal(rustix::process::Signal::INT);
        let ended = self.dumpcap.finish();
        assert!(ended.stderr.contains("dropped on interface"), "{ended}");
        assert!(ended.stderr.contains("/0 ("), "the capture has holes: {ended}");
        Packets { file: self.folder.path().join("capture.pcap"), _folder: Some(self.folder) }
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
