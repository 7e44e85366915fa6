//! Data Direct of the software ConnectX in a machine: the stock drivers of Linux, the next Debian's
//! libmlx5, dma-bufs of udmabuf and of the virtual GPU.
//!
//! With udmabuf the two functions sit below root ports of their own under an IOMMU that translates,
//! so each has a map of its own: what the wrong one of them asked for would be other memory, or
//! none.

use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use system::lab::{Booted, Lab, with_next_rdma};
use system::{Namespace, Run, Running, c_program, next_debian, peerdma, skip};
use vm::Machine;

const SIDE: &str = "0000:02:00.0";
/// The first HCA of the platform, and its Data Direct function.
const PLATFORM: &str = "grace";
const HCA: &str = "0000:01:00.0";
const DIRECT: &str = "0008:03:00.0";
/// Its pace, as a fraction of the rate of its links, 32 GB/s at least: less than what this moves
/// without a limit.
const PACE: f64 = 0.001;
const LIMIT: Duration = Duration::from_secs(60);

struct Stage {
    lab: Lab,
    machine: Machine,
    namespace: Namespace,
    socket: PathBuf,
    side: PathBuf,
}

/// How the functions are plugged in.
#[derive(Clone, Copy, PartialEq)]
enum Plugged {
    /// Below root ports of their own, under an IOMMU.
    Apart,
    /// Behind one switch with the virtual GPU.
    BesideGpu,
}

/// A machine for both functions.
fn stage(name: &str, plugged: Plugged) -> Result<Stage, String> {
    if !system::is_root() {
        return Err("a namespace for the adapter needs root".to_owned());
    }
    let said = |error: anyhow::Error| format!("{error:#}");
    let lab = Lab::new().map_err(said)?;
    let debian = next_debian()?;
    let programs = [c_program("data_direct")?, c_program("kernel_dmabuf")?];
    let more = |disk: &mut vm::RamDisk| {
        with_next_rdma(disk, &debian)?;
        programs.iter().try_for_each(|program| disk.own_program(program))
    };
    let machine = match plugged {
        Plugged::Apart => lab.rdma_machine_with(more),
        Plugged::BesideGpu => lab.gpu_machine_with(more),
    };
    let mut machine = machine.map_err(said)?;
    let (socket, side) = (lab.socket("connectx"), lab.socket("data-direct"));
    match plugged {
        Plugged::Apart => {
            machine.kernel_options = "intel_iommu=on".to_owned();
            machine.device("intel-iommu,caching-mode=on");
            machine.monitor = Some(lab.socket("monitor"));
            machine.root_port("own");
            machine.root_port("side");
            machine.function(&socket, "own");
            machine.function(&side, "side");
        }
        Plugged::BesideGpu => {
            machine.root_port("root");
            machine.switch("switch", "root", 3);
            machine.function(&socket, "switch0");
            machine.function(&side, "switch1");
            machine.function(&lab.socket("gpu"), "switch2");
        }
    }
    Ok(Stage { namespace: Namespace::new(name), lab, machine, socket, side })
}

fn served(run: Run, namespace: &Namespace) -> Running {
    let mut serving = run.within(namespace).limit(Duration::from_secs(600)).start();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !serving.said().contains("serving") {
        assert!(serving.alive() && Instant::now() < deadline, "{}", serving.said());
        std::thread::yield_now();
    }
    serving
}

/// Boots with an adapter that is served in this way; the guest, and the adapter.
fn boot(stage: &Stage, run: Run) -> (Running, Booted) {
    let adapter = served(run, &stage.namespace);
    let guest = stage.lab.boot(&stage.machine);
    guest.prepare_next_rdma(&["data_direct", "kernel_dmabuf"]);
    (adapter, guest)
}

/// Bytes read and written by a function, as `peerdma top` tells.
fn bytes(stage: &Stage, function: &str) -> (u64, u64) {
    let run = Run::program(peerdma()).args(&["top", "--json", "--count", "1"]);
    let said = run.within(&stage.namespace).finish().ok().stdout;
    let sample: Value = serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap();
    let routes = sample["devices"][0]["routes"].as_array().expect("routes").clone();
    let of = |field: &str| {
        let mine = routes.iter().filter(|route| route["function"] == function);
        mine.filter_map(|route| route[field].as_u64()).sum()
    };
    (of("read_bytes"), of("written_bytes"))
}

/// What a program in the other root file system says.
fn chroot(guest: &Booted, line: &str) -> (i32, String) {
    guest.script(&guest.by_next_rdma(line))
}

fn passes(guest: &Booted, line: &str) -> String {
    let (status, said) = chroot(guest, line);
    let wrong: Vec<&str> = said.lines().filter(|line| line.starts_with("NOT")).collect();
    assert!(status == 0 && wrong.is_empty(), "{line}: {wrong:#?}\n{said}");
    said
}

/// A program in the background, which reads its input from a pipe.
struct Background<'a>(&'a Booted);

impl Background<'_> {
    fn start<'a>(guest: &'a Booted, line: &str) -> Background<'a> {
        let command = guest.by_next_rdma(line);
        guest.output(&format!(
            "rm -f /tmp/pipe /tmp/said; mkfifo /tmp/pipe; (sleep 600 > /tmp/pipe & \
             {command} < /tmp/pipe > /tmp/said 2>&1; \
             echo ended=$? >> /tmp/said; kill $!) > /dev/null 2>&1 &"
        ));
        Background(guest)
    }

    /// Waits for a line that begins so.
    fn until(&self, word: &str) -> String {
        self.0.output(&format!(
            "for i in $(seq 600); do grep -q '^\\(ended\\|{word}\\)' /tmp/said && break; \
             usleep 100000; done; cat /tmp/said"
        ))
    }

    fn tell(&self) {
        self.0.output("echo done > /tmp/pipe");
    }

    fn passes(&self) {
        let said = self.until("ended");
        assert!(said.contains("ended=0") && !said.contains("NOT "), "{said}");
    }
}

/// QEMU's machine protocol.
struct Monitor(BufReader<UnixStream>);

impl Monitor {
    fn connect(socket: &Path) -> Monitor {
        let stream = UnixStream::connect(socket).expect("the monitor");
        stream.set_read_timeout(Some(LIMIT)).expect("a timeout");
        let mut monitor = Monitor(BufReader::new(stream));
        monitor.line();
        monitor.execute("qmp_capabilities", &json!({}));
        monitor
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("an answer");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"))
    }

    /// Executes a command that must succeed; events before its answer are passed over.
    fn execute(&mut self, command: &str, arguments: &Value) {
        let message = json!({ "execute": command, "arguments": arguments });
        self.0.get_mut().write_all(format!("{message}\n").as_bytes()).expect("the monitor");
        loop {
            let answer = self.line();
            assert!(answer.get("error").is_none(), "{command}: {answer}");
            if answer.get("return").is_some() {
                return;
            }
        }
    }

    fn event(&mut self, name: &str) {
        while self.line()["event"] != name {}
    }
}

/// No driver complained but of commands that have one of these words in their names.
fn no_complaint(guest: &Booted, asked: &[&str]) {
    guest.assert_quiet();
    let log = guest.output("dmesg");
    let of_drivers = log.lines().filter(|line| line.contains("mlx5") || line.contains(SIDE));
    let words = ["fail", "error", "unable", "cannot", "not found", "warning", "timeout"];
    let bad: Vec<&str> = of_drivers
        .filter(|line| words.iter().any(|word| line.to_lowercase().contains(word)))
        .filter(|line| !asked.iter().any(|word| line.contains(word)))
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
}

#[test]
fn regions_by_data_direct_are_reached_by_the_second_function() {
    let stage = match stage("data-direct", Plugged::Apart) {
        Ok(stage) => stage,
        Err(reason) => skip!("{reason}"),
    };
    let run = Run::program(peerdma()).args(&["connectx", "--socket"]).arg(&stage.socket);
    let run = run.arg("--data-direct-socket").arg(&stage.side);
    let run = run.args(&["--platform", PLATFORM, &format!("--pace={PACE}")]);
    let (adapter, guest) = boot(&stage, run);
    let bus = guest.output(&format!("lspci -vvv -s {SIDE}"));
    for expected in ["[VU] Vendor specific: PDM", "Kernel driver in use: mlx5_ib", "BusMaster+"] {
        assert!(bus.contains(expected), "{expected}\n{bus}");
    }
    no_complaint(&guest, &[]);
    let (own, before) = (bytes(&stage, HCA), bytes(&stage, DIRECT));
    assert_eq!(before, (0, 0));
    passes(&guest, "data_direct /dev/udmabuf works");
    let (read, written) = bytes(&stage, DIRECT);
    assert!(read > 8192 && written >= 8192, "{read} read and {written} written");
    assert!(bytes(&stage, HCA) > own, "the program's own buffer is the adapter's");
    for device in ["/dev/udmabuf", "/dev/dma_heap/system"] {
        let before = bytes(&stage, DIRECT);
        let (status, said) = chroot(&guest, &format!("kernel_dmabuf {device}"));
        assert_eq!(status, 0, "{device}: {said}");
        assert_eq!(bytes(&stage, DIRECT), before, "plainly registered");
    }
    let said = guest.output(
        "ib_write_bw -F -n 200 -s 65536 > /dev/null & \
         until netstat -ltn | grep -q :18515; do usleep 50000; done; \
         ib_write_bw -F -n 200 -s 65536 localhost",
    );
    let mib = said.lines().find_map(|line| line.trim().strip_prefix("65536 "));
    let mib = mib.and_then(|line| line.split_whitespace().nth(2)?.parse::<f64>().ok());
    let mib = mib.unwrap_or_else(|| panic!("no rate: {said}"));
    assert!(mib < 1.1 * PACE * 32e9 / 1e6, "{mib} MiB/s in spite of the links");
    // Its driver goes under a write, and comes back.
    let unbind = format!("echo {SIDE} > /sys/bus/pci/drivers/mlx5_ib/unbind");
    let bind = format!("echo {SIDE} > /sys/bus/pci/drivers/mlx5_ib/bind");
    for _ in 0..3 {
        let traffic = Background::start(&guest, "data_direct /dev/udmabuf traffic");
        traffic.until("moving");
        guest.output(&unbind);
        traffic.passes();
        guest.output(&bind);
    }
    // The same between writes, and what follows.
    let program = Background::start(&guest, "data_direct /dev/udmabuf unplug");
    program.until("unplug");
    guest.output(&unbind);
    program.tell();
    program.until("replug");
    guest.output(&bind);
    program.tell();
    program.passes();
    // The function itself leaves the machine while keys live on, and another takes its place.
    let mut monitor = Monitor::connect(&stage.lab.socket("monitor"));
    let program = Background::start(&guest, "data_direct /dev/udmabuf unplug");
    program.until("unplug");
    monitor.execute("device_del", &json!({ "id": "function1" }));
    monitor.event("DEVICE_DELETED");
    guest.output(&format!("! test -e /sys/bus/pci/devices/{SIDE}"));
    program.tell();
    program.until("replug");
    let words = vm::function("function1", &stage.side, "side");
    monitor.execute("device_add", &serde_json::from_str(&words).expect("a function"));
    guest.output(&format!(
        "for i in $(seq 300); do test -e /sys/bus/pci/drivers/mlx5_ib/{SIDE} && exit 0; \
         usleep 100000; done; exit 1"
    ));
    program.tell();
    program.passes();
    passes(&guest, "data_direct /dev/udmabuf works");
    // Answers to what the program asked for wrongly, which the driver hands on and notes.
    no_complaint(&guest, &["CREATE_MKEY"]);
    drop(guest);
    let mut adapter = adapter;
    assert!(adapter.alive(), "{}", adapter.said());
}

#[test]
fn the_virtual_gpus_memory_is_reached_by_the_second_function() {
    let stage = match stage("data-direct-gpu", Plugged::BesideGpu) {
        Ok(stage) => stage,
        Err(reason) => skip!("{reason}"),
    };
    let run = Run::program(peerdma()).args(&["connectx", "--socket"]).arg(&stage.socket);
    let run = run.arg("--data-direct-socket").arg(&stage.side);
    let run = run.args(&["--platform", PLATFORM, "--gpu-memory", "64", "--gpu-socket"]);
    let (adapter, guest) = boot(&stage, run.arg(stage.lab.socket("gpu")));
    // The table that the library in a process is judged by, with the GPU of a machine.
    passes(&guest, "data_direct /dev/dri/renderD128 works");
    let (read, written) = bytes(&stage, DIRECT);
    assert!(read > 8192 && written >= 8192, "{read} read and {written} written");
    guest.assert_quiet();
    drop(guest);
    let mut adapter = adapter;
    assert!(adapter.alive(), "{}", adapter.said());
}

#[test]
fn with_the_wrong_requester_the_bytes_are_wrong() {
    let stage = match stage("miswired", Plugged::Apart) {
        Ok(stage) => stage,
        Err(reason) => skip!("{reason}"),
    };
    let run = Run::program(Path::new(env!("CARGO_BIN_EXE_miswired")));
    let (adapter, guest) = boot(&stage, run.arg(&stage.socket).arg(&stage.side));
    let (status, said) = chroot(&guest, "data_direct /dev/udmabuf miswired");
    let wrong: Vec<&str> = said.lines().filter(|line| line.starts_with("NOT")).collect();
    assert!(status != 0 && !wrong.is_empty(), "{said}");
    let data = ["the bytes are in the GPU", "a write by Data Direct", "a read of it"];
    assert!(wrong.iter().any(|line| data.iter().any(|what| line.contains(what))), "{wrong:#?}");
    assert!(!said.contains("ok the bytes are in the GPU"), "{said}");
    // Registering is as before.
    assert!(said.contains("ok the address shown is the offset"), "{said}");
    drop(guest);
    let mut adapter = adapter;
    assert!(adapter.alive(), "{}", adapter.said());
}
