//! QEMU, unmodified, moves a virtual machine to another QEMU by its RDMA migration: the memory that
//! arrives is compared byte by byte.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use system::{Counters, Namespace, Run, Running, is_root, port, skip};

/// Where in the guest's memory the data is, and its bytes. The rest is zero, and QEMU sends no zero
/// pages.
const AT: u64 = 16 << 20;
const DATA: usize = 48 << 20;
const LIMIT: Duration = Duration::from_secs(100);

/// A machine that does not run, and the socket that QEMU is told what to do by.
struct Machine {
    qemu: Running,
    monitor: BufReader<UnixStream>,
}

impl Machine {
    fn start(folder: &Path, name: &str, options: &str, run: impl Fn(Run) -> Run) -> Machine {
        let socket = folder.join(name);
        let line = format!(
            "qemu-system-x86_64 -S -machine q35,accel=tcg -m 96 -display none -nodefaults \
             -qmp unix:{},server=on,wait=off {options}",
            socket.display()
        );
        let mut qemu = run(Run::hca(&line)).limit(LIMIT).start();
        qemu.until("QEMU's socket", |_| UnixStream::connect(&socket).is_ok());
        // The first connection is the one that was tried, until QEMU sees its end.
        let stream = UnixStream::connect(&socket).expect("QEMU's socket");
        stream.set_read_timeout(Some(LIMIT)).expect("a time limit");
        let mut machine = Machine { qemu, monitor: BufReader::new(stream) };
        machine.tell("qmp_capabilities", json!({}));
        machine
    }

    /// Has QEMU carry a command out, and gives its answer.
    fn tell(&mut self, command: &str, arguments: Value) -> Value {
        let line = json!({ "execute": command, "arguments": arguments });
        // At once: QEMU ends by a command before it has its line's end.
        let line = format!("{line}\n");
        self.monitor.get_mut().write_all(line.as_bytes()).expect("QEMU listens");
        loop {
            let mut line = String::new();
            self.monitor.read_line(&mut line).expect("QEMU answers");
            let said: Value = serde_json::from_str(&line)
                .unwrap_or_else(|_| panic!("{command}: {line}\n{}", self.qemu.said()));
            assert!(said.get("error").is_none(), "{command}: {said}\n{}", self.qemu.said());
            if let Some(answer) = said.get("return") {
                return answer.clone();
            }
        }
    }

    /// Waits for the end of its migration.
    fn migrated(&mut self) {
        let started = Instant::now();
        loop {
            let said = self.tell("query-migrate", json!({}));
            match said["status"].as_str() {
                Some("completed") => return,
                Some("failed" | "cancelled") => panic!("{said}\n{}", self.qemu.said()),
                _ => assert!(started.elapsed() < LIMIT, "{said}\n{}", self.qemu.said()),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn quit(mut self) {
        self.tell("quit", json!({}));
        self.qemu.finish().ok();
    }
}

/// Bytes without zero pages, of a linear congruential generator.
fn data() -> Vec<u8> {
    let mut word = 0x5eed_u64;
    let mut next = || {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        word.to_ne_bytes()
    };
    (0..DATA / 8).flat_map(|_| next()).collect()
}

/// Moves a machine. With `pins` all of its memory is registered at the beginning, else piece by
/// piece as it is sent.
fn moves(pins: bool) {
    if !system::has("qemu-system-x86_64") {
        skip!("QEMU is not installed (package qemu-system-x86)");
    }
    if !is_root() {
        skip!("network namespaces need root");
    }
    let (network, counters) = (Namespace::new("migration"), Counters::new());
    let (folder, port) = (tempfile::tempdir().unwrap(), port());
    let run = |run: Run| run.within(&network).env("PEERDMA_COUNTERS", counters.file());
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    let sent = data();
    std::fs::write(&here, &sent).unwrap();
    let loaded = format!("-device loader,file={},addr={AT},force-raw=on", here.display());
    let mut from = Machine::start(folder.path(), "from", &loaded, run);
    let incoming = "-incoming defer";
    let mut to = Machine::start(folder.path(), "to", incoming, run);
    let capability = json!([{ "capability": "rdma-pin-all", "state": pins }]);
    for machine in [&mut from, &mut to] {
        machine.tell("migrate-set-capabilities", json!({ "capabilities": capability }));
    }
    let uri = format!("rdma:127.0.0.1:{port}");
    to.tell("migrate-incoming", json!({ "uri": uri }));
    from.tell("migrate", json!({ "uri": uri }));
    from.migrated();
    to.migrated();
    to.tell("pmemsave", json!({ "val": AT, "size": DATA, "filename": there }));
    assert!(std::fs::read(&there).unwrap() == sent, "the memory is another");
    from.quit();
    to.quit();
    assert!(counters.sum("sent_bytes") >= DATA as u64, "{}", counters.text());
}

#[test]
fn a_machine_moves_with_its_memory() {
    moves(false);
}

#[test]
fn a_machine_moves_with_all_memory_pinned() {
    moves(true);
}
