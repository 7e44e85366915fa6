//! rdma-core's own test suite in a guest whose adapters are software ConnectXs: stock mlx5 drivers
//! of the lab's newer kernel, the next distribution's rdma-core, its generic tests and mlx5's own.
//!
//! One adapter's port is an InfiniBand one, and all tests run there;
//! `conformance/exceptions_connectx.txt` names every one that does not pass and why. Those of them
//! that want an Ethernet, and some whose way differs there, run on the other's RoCE port, with
//! `exceptions_connectx_roce.txt`. PEERDMA_CONFORMANCE runs those tests only that have it, or one
//! of its parts between commas, in their names.

use std::path::{Path, PathBuf};
use std::time::Duration;
use system::conformance::{Case, Outcome, exceptions, outcomes, surprises};
use system::gpu_guest::GPU_MEMORY_MIB;
use system::lab::{Booted, Lab};
use system::{Namespace, Running, c_program, next_debian, serve_connectx, skip};
use vm::Machine;

/// Tests that pass on each port.
const LEAST_PASSES: [usize; 2] = [147, 35];
/// The time for all tests together.
const LIMIT: Duration = Duration::from_secs(900);
/// The adapter with the InfiniBand port in the guest, behind a switch with its Data Direct function
/// and the virtual GPU.
const FUNCTION: &str = "0000:03:00.0";
/// What rdma-core's tests know of CUDA, on that GPU.
const CUDA: [&str; 4] = ["__init__.py", "cuda.py", "cudart.py", "nvrtc.py"];
/// The address of the RoCE port.
const ADDRESS: &str = "198.18.7.1";
/// The folder of the other root file system in the guest.
const ROOT: &str = "/debian";
/// Why tests do not pass on the InfiniBand port that are for the other one.
const FOR_ETHERNET: &str = "The port is an InfiniBand one";
/// Tests that go another way on a RoCE port, or beginnings of their names.
const DIFFERENT: [&str; 6] = [
    "tests.test_addr.",
    "tests.test_device.DeviceTest.test_query_gid",
    "tests.test_qpex.QpExTestCase.test_qp_ex_ud_",
    "tests.test_qpex.QpExTestCase.test_qp_ex_xrc_send",
    "tests.test_rdmacm.",
    "tests.test_mlx5_rdmacm.Mlx5CM",
];
/// The file with the names of those that run on the RoCE port.
const CHOSEN: &str = "chosen";
/// The interface of the RoCE port.
const INTERFACE: &str = "eth0";
/// Tests of other vendors' devices.
const FOREIGN: &str = "tests.test_efa";

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

/// A port in the guest, and the tests for it.
struct Port {
    device: &'static str,
    gid: u32,
    /// Only the chosen tests are for it, and frames of raw queue pairs count as packets.
    on_ethernet: bool,
}

const INFINIBAND: Port = Port { device: "mlx5_0", gid: 0, on_ethernet: false };
const ROCE: Port = Port { device: "mlx5_1", gid: 1, on_ethernet: true };

fn list(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of the tests for the RoCE port, or their beginnings.
fn chosen() -> Vec<String> {
    let list = list("exceptions_connectx.txt");
    let all = exceptions(&list);
    let wanting = all.iter().filter(|(_, exception)| exception.why.starts_with(FOR_ETHERNET));
    wanting.map(|(id, _)| *id).chain(DIFFERENT).map(str::to_owned).collect()
}

fn machine(lab: &Lab, root: &Path, sockets: &[PathBuf; 4]) -> Result<Machine, String> {
    let flows = c_program("flows")?;
    let more = |disk: &mut vm::RamDisk| {
        disk.of_root(root, ROOT, &NAMES)?;
        let mut add = |name: &str, content: &str| {
            disk.file(&format!("{ROOT}/usr/share/suite/{name}"), content.as_bytes());
        };
        for script in ["list_tests.py", "in_guest.py", "frames.py", "hostile.py"] {
            add(script, &list(script));
        }
        for module in CUDA.map(|name| format!("cuda/{name}")) {
            add(&module, &list(&module));
        }
        add(CHOSEN, &chosen().join("\n"));
        disk.own_program(&flows)
    };
    let mut machine = lab.gpu_machine_with(more).map_err(|error| format!("{error:#}"))?;
    machine.root_port("near");
    machine.switch("switch", "near", 3);
    machine.root_port("roce");
    for (port, socket) in ["switch0", "switch1", "switch2", "roce"].iter().zip(sockets) {
        machine.function(socket, port);
    }
    Ok(machine)
}

/// Makes the guest ready: huge pages, the other root, addresses for both ports.
fn prepare(guest: &Booted) {
    guest.output("ip link set ib0 up && ip addr add 198.18.5.1/24 dev ib0");
    guest.output("until grep -q 1 /sys/class/net/ib0/carrier; do usleep 50000; done");
    guest.output(&format!(
        "echo 16 > /proc/sys/vm/nr_hugepages && cd {ROOT} && mkdir -p proc sys dev && \
         for i in proc sys dev tmp; do mount -o bind /$i $i; done"
    ));
    // What a test sends must be distinguishable from what the interface sends of its own.
    guest.output(&format!(
        "echo 1 > /proc/sys/net/ipv6/conf/{INTERFACE}/disable_ipv6; ip link set {INTERFACE} up; \
         ip addr replace {ADDRESS}/24 dev {INTERFACE}; \
         until ibv_devinfo -v -d {} | grep -q 'GID.*::ffff:{ADDRESS}'; do usleep 50000; done",
        ROCE.device
    ));
}

/// Runs the suite on a port; the tests in their order and what became of each.
fn run(guest: &Booted, port: &Port) -> Vec<(Case, Outcome)> {
    let only = std::env::var("PEERDMA_CONFORMANCE").unwrap_or_default();
    let Port { device, gid, on_ethernet } = port;
    let frames = format!("CHOSEN={CHOSEN} INTERFACE={INTERFACE}");
    let environment = if *on_ethernet { frames.as_str() } else { "" };
    let counter = format!("/sys/class/infiniband/{device}/ports/1/counters/port_xmit_packets");
    let (mut first, mut results) = (0, Vec::new());
    // A test that crashes takes Python with it; the next run begins behind it.
    loop {
        let script = format!(
            "cd {ROOT}/usr/share/suite && FIRST={first} ONLY={only} COUNTER={counter} \
             {environment} chroot {ROOT} /bin/sh -c \
             'cd /usr/share/suite && exec python3 in_guest.py --dev {device} --port 1 --gid {gid}'"
        );
        let mut said = Vec::new();
        let ended = guest.0.run(&script, LIMIT, |bytes| said.extend_from_slice(bytes));
        let said = String::from_utf8_lossy(&said).into_owned();
        let ended = ended.map_err(|error| error.to_string());
        let (last, done) = outcomes(&said, &mut results);
        if done {
            results.retain(|(case, _)| !case.id.starts_with(FOREIGN));
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

/// A driver of the guest's that means no good, and the stock one after it. Each wrong act is
/// reported once.
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

/// Flow rules, their counters and indirection tables, by the program that judges them in process.
/// The other adapter is away, for it takes the first, and no frame of the interface's own may come
/// between.
fn steer_frames(guest: &Booted, adapter: &Running) {
    guest.output(&format!("echo {FUNCTION} > /sys/bus/pci/drivers/mlx5_core/unbind"));
    let (_, said) = guest.script("flows");
    let wrong: Vec<&str> = said.lines().filter(|row| row.starts_with("NOT ")).collect();
    assert!(wrong.is_empty(), "{wrong:?}\n{said}\nthe adapter:\n{}", adapter.said());
    assert!(said.contains(" rows, 0 wrong"), "{said}");
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
    let sockets = ["infiniband", "direct", "gpu", "roce"];
    let sockets = sockets.map(|name| lab.socket(&format!("suite-{name}")));
    let machine = match machine(&lab, &root, &sockets) {
        Ok(machine) => machine,
        Err(reason) => skip!("{reason}"),
    };
    let namespace = Namespace::new("connectx-suite");
    let [infiniband, direct, gpu, roce] = &sockets;
    let [direct, gpu] = [direct, gpu].map(|socket| socket.to_str().expect("a name"));
    let beside =
        ["--data-direct-socket", direct, "--gpu-socket", gpu, "--gpu-memory", GPU_MEMORY_MIB];
    let mut adapters = [
        serve_connectx(&namespace, infiniband, &beside),
        serve_connectx(&namespace, roce, &["--port", "roce"]),
    ];
    let guest = lab.boot(&machine);
    prepare(&guest);
    let results = [run(&guest, &INFINIBAND), run(&guest, &ROCE)];
    if let Some(file) = std::env::var_os("PEERDMA_OUTCOMES") {
        let lines = results.iter().flatten().map(|result| format!("{result:?}\n"));
        std::fs::write(file, lines.collect::<String>()).expect("the outcomes");
    }
    if let Some(complaint) = guest.complaint() {
        panic!("{complaint}\nthe adapters:\n{}", adapters.each_ref().map(Running::said).concat());
    }
    misbehave(&guest, &adapters[0]);
    steer_frames(&guest, &adapters[1]);
    let lists = ["exceptions_connectx.txt", "exceptions_connectx_roce.txt"].map(list);
    for ((results, list), least) in results.iter().zip(&lists).zip(LEAST_PASSES) {
        judge(results, list, least, &adapters);
    }
    for adapter in &mut adapters {
        assert!(adapter.alive(), "{}", adapter.said());
    }
}

/// Whether the tests on a port did what its list says.
fn judge(results: &[(Case, Outcome)], list: &str, least: usize, adapters: &[Running; 2]) {
    let whole = std::env::var_os("PEERDMA_CONFORMANCE").is_none();
    let wrong = surprises(results, &exceptions(list), whole);
    let passes = results.iter().filter(|(_, outcome)| *outcome == Outcome::Passed).count();
    eprintln!("{passes} of {} tests pass in the guest", results.len());
    let said = adapters.each_ref().map(Running::said).concat();
    let (many, wrong) = (wrong.len(), wrong.join("\n"));
    assert!(many == 0, "{passes} pass; {many} surprises:\n{wrong}\nthe adapters:\n{said}");
    assert!(!whole || passes >= least, "only {passes} pass");
}
