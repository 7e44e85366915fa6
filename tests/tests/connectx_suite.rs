//! rdma-core's own test suite in a guest whose adapter is the software ConnectX: stock mlx5 drivers of the lab's newer kernel, the
//! next distribution's rdma-core, its generic tests and mlx5's own.
//!
//! `conformance/exceptions_connectx.txt` names every test that does not pass and why. PEERDMA_CONFORMANCE runs those tests only
//! that have it in their names.

use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use system::conformance::{Case, Kind, Outcome, exceptions, surprises};
use system::lab::{Booted, Lab};
use system::{Namespace, Running, next_debian, serve_connectx, skip};
use vm::Machine;

/// Tests that pass.
const LEAST_PASSES: usize = 137;
/// Of all tests together.
const LIMIT: Duration = Duration::from_secs(900);
/// The adapter in the guest.
const FUNCTION: &str = "0000:01:00.0";
/// In the guest.
const ROOT: &str = "/debian";
const COUNTER: &str = "/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_packets";
/// Tests of other vendors' devices.
const FOREIGN: [&str; 2] = ["tests.test_efa", "tests.test_cuda"];

/// What the suite needs of the other root file system.
const NAMES: [&str; 14] = [
    "usr/bin/python3",
    "usr/lib/python3",
    "usr/lib/python3.13",
    "usr/share/suite/tests",
    "usr/lib/x86_64-linux-gnu/libibverbs",
    "usr/lib/x86_64-linux-gnu/libgcc_s.so.1",
    "etc/libibverbs.d/mlx5.driver",
    "usr/bin/rdma",
    "usr/sbin/devlink",
    "usr/bin/ip",
    "usr/bin/cat",
    "usr/bin/ls",
    "usr/bin/sh",
    "tmp",
];

fn machine(lab: &Lab, root: &Path, socket: &Path) -> Result<Machine, String> {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance");
    let more = |disk: &mut vm::RamDisk| {
        disk.of_root(root, ROOT, &NAMES)?;
        for script in ["list_tests.py", "in_guest.py", "hostile.py"] {
            let content = std::fs::read(ours.join(script)).expect("a script of ours");
            disk.file(&format!("{ROOT}/usr/share/suite/{script}"), &content);
        }
        Ok(())
    };
    let mut machine = lab.rdma_machine_with(more).map_err(|error| format!("{error:#}"))?;
    machine.root_port("root");
    machine.function(socket, "root");
    Ok(machine)
}

/// Runs the suite; the tests in their order and what became of each.
fn run(guest: &Booted) -> Vec<(Case, Outcome)> {
    guest.output(&format!(
        "echo 16 > /proc/sys/vm/nr_hugepages && cd {ROOT} && mkdir -p proc sys dev && for i in proc sys dev tmp; do mount -o bind /$i $i; done"
    ));
    let only = std::env::var("PEERDMA_CONFORMANCE").unwrap_or_default();
    let (mut first, mut results) = (0, Vec::new());
    // A test that crashes takes Python with it; the next run begins behind it.
    loop {
        let script = format!(
            "cd {ROOT}/usr/share/suite && FIRST={first} ONLY={only} COUNTER={COUNTER} chroot {ROOT} /bin/sh -c \
             'cd /usr/share/suite && exec python3 in_guest.py --dev mlx5_0 --port 1 --gid 0'"
        );
        let mut said = Vec::new();
        let ended = guest.0.run(&script, LIMIT, |bytes| said.extend_from_slice(bytes));
        let said = String::from_utf8_lossy(&said).into_owned();
        let ended = ended.map_err(|error| error.to_string());
        let (last, done) = read(&said, &mut results);
        if done {
            return results;
        }
        match last {
            Some((number, case)) if ended.is_ok() => {
                results.push((case, Outcome::Never(format!("crashes: {said}"))));
                first = number + 1;
            }
            _ => panic!("{ended:?}\n{said}\n{}", guest.0.log()),
        }
    }
}

/// Reads what the runner said: a test that has begun and not ended, and whether all is done.
fn read(said: &str, results: &mut Vec<(Case, Outcome)>) -> (Option<(u64, Case)>, bool) {
    let mut running: Option<(u64, Case)> = None;
    for line in said.lines() {
        let Ok(Value::Object(line)) = serde_json::from_str(line) else { continue };
        let text = |name: &str| line.get(name).and_then(Value::as_str).unwrap_or_default();
        if line.contains_key("end") {
            return (None, true);
        }
        if let Some(number) = line.get("number").and_then(Value::as_u64) {
            let case = Case { id: text("id").to_owned(), kind: Kind::named(text("kind")) };
            running = Some((number, case));
        } else if let Some((_, case)) = running.take() {
            let packets = line.get("packets").and_then(Value::as_u64);
            let outcome = outcome(&case, text("said"), packets);
            results.push((case, outcome));
        }
    }
    (running, false)
}

fn outcome(case: &Case, said: &str, packets: Option<u64>) -> Outcome {
    match said {
        "" => Outcome::of_pass(case.kind, packets),
        said if said.contains("Hangs: hangs") => Outcome::Never(said.to_owned()),
        said => Outcome::Not(said.to_owned()),
    }
}

/// A driver of the guest's that means no good, and the stock one after it. Each wrong act is told once.
fn misbehave(guest: &Booted, adapter: &Running) {
    let driver = "/sys/bus/pci/drivers/mlx5_core";
    let before = adapter.said().len();
    guest.output(&format!("echo {FUNCTION} > {driver}/unbind"));
    let said = guest.output(&format!(
        "chroot {ROOT} /bin/sh -c 'BDF={FUNCTION} exec python3 /usr/share/suite/hostile.py'"
    ));
    assert!(said.contains("all as expected"), "{said}");
    let all = adapter.said();
    let told: Vec<&str> = all[before..].lines().filter(|line| line.contains("guest: ")).collect();
    for act in [
        "memory that is not there was to be read (64 bytes at 0x400000000000",
        "a command could not be fetched: wrong signature",
        "a command could not be fetched: bad input pointer",
        "the command 0xfff was refused: bad operation",
        "the command CREATE_QP was refused: bad ",
        "a doorbell rang for no queue",
    ] {
        let times = told.iter().filter(|line| line.contains(act)).count();
        assert_eq!(times, 1, "{act}\n{told:#?}");
    }
    guest.output(&format!("echo {FUNCTION} > {driver}/bind"));
    let ports = guest.output("ibv_devinfo");
    assert!(ports.contains("PORT_ACTIVE"), "{ports}");
}

#[test]
fn rdma_cores_own_tests_in_a_guest() {
    let lab = match Lab::new() {
        Ok(lab) => lab,
        Err(reason) => skip!("{reason:#}"),
    };
    let root = match next_debian() {
        Ok(root) => root,
        Err(reason) => skip!("{reason}"),
    };
    let socket = lab.socket("connectx");
    let machine = match machine(&lab, &root, &socket) {
        Ok(machine) => machine,
        Err(reason) => skip!("{reason}"),
    };
    let namespace = Namespace::new("connectx-suite");
    let mut adapter = serve_connectx(&namespace, &socket, &[]);
    let guest = lab.boot(&machine);
    let mut results = run(&guest);
    results.retain(|(case, _)| !FOREIGN.iter().any(|name| case.id.starts_with(name)));
    if let Some(file) = std::env::var_os("PEERDMA_OUTCOMES") {
        let lines: Vec<String> = results.iter().map(|result| format!("{result:?}\n")).collect();
        std::fs::write(file, lines.concat()).expect("the outcomes");
    }
    guest.assert_quiet();
    misbehave(&guest, &adapter);
    assert!(adapter.alive(), "{}", adapter.said());
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance/exceptions_connectx.txt");
    let list = std::fs::read_to_string(list).expect("conformance/exceptions_connectx.txt");
    let whole = std::env::var_os("PEERDMA_CONFORMANCE").is_none();
    let wrong = surprises(&results, &exceptions(&list), whole);
    let passes = results.iter().filter(|(_, outcome)| *outcome == Outcome::Passed).count();
    eprintln!("{passes} of {} tests pass in the guest", results.len());
    let (many, said) = (wrong.len(), adapter.said());
    let wrong = wrong.join("\n");
    assert!(many == 0, "{passes} pass; {many} surprises:\n{wrong}\nthe adapter:\n{said}");
    assert!(!whole || passes >= LEAST_PASSES, "only {passes} pass");
}
