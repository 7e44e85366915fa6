//! The layer preloaded into real programs: the system's own tools, Python, and C programs that try
//! every function.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use sysfs::{
    DeviceDescription, Gid, LaneSpeed, LinkLayer, PciFunction, PhysState, Port, PortState,
    ROOT_VARIABLE, Rate, symbol_entries, write_entries, write_tree,
};

const DEVICE: &str = "/sys/class/infiniband/peerdma0";
const FUNCTION: &str = "/sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";

fn device() -> DeviceDescription {
    let mut gid = [0u8; 16];
    (gid[0], gid[1], gid[15]) = (0xfe, 0x80, 1);
    DeviceDescription {
        name: "peerdma0".into(),
        node_guid: 1,
        sys_image_guid: 1,
        node_desc: "test".into(),
        board_id: "board".into(),
        fw_ver: "1.0.0".into(),
        hca_type: "peerdma".into(),
        hw_rev: 0,
        uverbs_index: 0,
        ports: vec![Port {
            state: PortState::Active,
            phys_state: PhysState::LinkUp,
            link_layer: LinkLayer::Ethernet,
            rate: Rate { lanes: 4, lane_speed: LaneSpeed::Edr },
            lid: 0,
            lid_mask_count: 0,
            sm_lid: 0,
            sm_sl: 0,
            cap_mask: 0,
            gid_table_len: 2,
            gids: vec![Gid { index: 0, gid, ifname: "lo".into(), gid_type: "RoCE v2".into() }],
            pkeys: vec![0xffff],
            counters: vec![],
            hw_counters: vec![],
        }],
        pci: PciFunction {
            bdf: "0000:3b:00.0".into(),
            bridges: vec!["0000:3a:00.0".into()],
            vendor: 0x1af4,
            device: 0x10f0,
            subsystem_vendor: 0x1af4,
            subsystem_device: 1,
            revision: 0,
            class: 0x02_0000,
            numa_node: 0,
            local_cpus: vec![0],
            bars: vec![],
            link_speed_tenth_gt_s: 160,
            link_width: 16,
        },
        netdevs: vec!["lo".into()],
        twin_ports: 0,
    }
}

/// A scratch folder with the tree and room for compiled programs.
struct Bench(PathBuf);

impl Bench {
    fn new(name: &str) -> Bench {
        let folder =
            std::env::temp_dir().join(format!("peerdma-shim-{}-{name}", std::process::id()));
        fs::create_dir_all(folder.join("scratch")).unwrap();
        write_tree(&folder.join("tree"), &device()).unwrap();
        Bench(folder)
    }

    /// `program` with the layer preloaded and the tree named.
    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("LD_PRELOAD", library())
            .env(ROOT_VARIABLE, self.0.join("tree"))
            .env("LC_ALL", "C");
        command
    }

    #[track_caller]
    fn shell(&self, script: &str) -> String {
        text(self.command("sh").args(["-c", script]).output().unwrap())
    }

    /// Compiles `tests/c/<name>.c`, without warnings because it errs on purpose, with the checks of
    /// `_FORTIFY_SOURCE`, which call functions of their own.
    fn compile(&self, name: &str) -> PathBuf {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
        let program = self.0.join(name);
        let output = Command::new("cc")
            .args([
                "-O2",
                "-w",
                "-Werror=implicit-function-declaration",
                "-U_FORTIFY_SOURCE",
                "-D_FORTIFY_SOURCE=2",
                "-o",
            ])
            .args([&program, &folder.join(format!("{name}.c"))])
            .output()
            .expect("a C compiler is installed");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The example, which cargo builds beside the tests.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().parent().unwrap().join("examples/libpreload.so");
    assert!(
        library.exists(),
        "{} is missing: cargo test builds it, unless told --test",
        library.display()
    );
    library
}

/// Standard output of a program that must have succeeded silently.
#[track_caller]
fn text(output: Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn coreutils_see_the_device() {
    let bench = Bench::new("coreutils");
    assert_eq!(
        bench.shell("ls /sys/class/infiniband /dev/infiniband"),
        "/dev/infiniband:\nrdma_cm\nuverbs0\n\n/sys/class/infiniband:\npeerdma0\n"
    );
    assert_eq!(bench.shell(&format!("cat {DEVICE}/ports/1/state")), "4: ACTIVE\n");
    assert_eq!(bench.shell(&format!("ls {DEVICE}/device/net/")), "lo\n");
    assert_eq!(
        bench.shell("stat -c '%F %t:%T' /dev/infiniband/uverbs0"),
        "character special file e7:c0\n"
    );
    assert_eq!(bench.shell("test -c /dev/infiniband/uverbs0 && echo yes"), "yes\n");
    assert_eq!(bench.shell("test -c /dev/infiniband/rdma_cm && echo yes"), "yes\n");
    assert_eq!(bench.shell("cat /sys/class/misc/rdma_cm/abi_version"), "4\n");
    assert_eq!(bench.shell(&format!("readlink -f {DEVICE}/device")), format!("{FUNCTION}\n"));
    assert_eq!(
        bench.shell(&format!("cd {DEVICE}/ports/1 && cat gids/0")),
        "fe80:0000:0000:0000:0000:0000:0000:0001\n"
    );
    assert_eq!(bench.shell("cat /sys/class/infiniband_verbs/*/abi_version"), "1\n");
    let long = bench.shell(&format!("ls -l /sys/class/infiniband {DEVICE}/ports/1"));
    assert!(long.contains("peerdma0 -> ../../devices/pci0000:3a/"), "{long}");
    assert!(long.contains("-r--r--r-- 1 "), "{long}");
    assert_eq!(
        bench.shell(&format!("grep -r ACTIVE {DEVICE}/ports")),
        format!("{DEVICE}/ports/1/state:4: ACTIVE\n")
    );
    assert_eq!(
        bench.shell("find /sys/class/infiniband/ -type l"),
        "/sys/class/infiniband/peerdma0\n"
    );
}

#[test]
fn changing_attributes_are_asked_each_time() {
    let bench = Bench::new("dynamic");
    let read = |script: &str| {
        text(
            bench
                .command("sh")
                .env("PEERDMA_TEST_GID", "live\n")
                .args(["-c", script])
                .output()
                .unwrap(),
        )
    };
    assert_eq!(
        read(&format!("cat {DEVICE}/ports/1/gids/0 {DEVICE}/ports/1/gids/1")),
        "live\n0000:0000:0000:0000:0000:0000:0000:0000\n"
    );
    assert_eq!(read(&format!("cat {FUNCTION}/infiniband/peerdma0/ports/1/gids/0")), "live\n");
    assert_eq!(read(&format!("grep -rh live {DEVICE}/ports/1/gids")), "live\n");
    assert_eq!(read(&format!("cd {DEVICE}/ports && cat 1/gids/0")), "live\n");
}

#[test]
fn python_sees_the_device_and_closes_no_engine() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        test_support::skip!("Python is not installed (package python3)");
    }
    let bench = Bench::new("python");
    let script = format!(
        "import glob, os, stat, subprocess\n\
         print(os.listdir('/sys/class/infiniband'), \
         glob.glob('/sys/class/infiniband/*/ports/*/state'))\n\
         print(open('{DEVICE}/ports/1/rate').read().strip(), os.path.realpath('{DEVICE}/device'))\n\
         print(stat.S_ISCHR(os.stat('/dev/infiniband/uverbs0').st_mode), \
         os.path.exists('/dev/infiniband/rdma_cm'))\n\
         print(subprocess.run(['ls', '{DEVICE}/device/net/'], capture_output=True).stdout)\n\
         import ctypes\n\
         fd = os.dup2(1, 200)\n\
         ctypes.CDLL(None).peerdma_test_keep(fd)\n\
         os.closerange(3, 1000)\n\
         os.fstat(fd)\n\
         print(subprocess.run(['true'], close_fds=True).returncode)\n"
    );
    let expected = format!(
        "['peerdma0'] ['{DEVICE}/ports/1/state']\n100 Gb/sec (4X EDR) {FUNCTION}\nTrue True\n\
         b'lo\\n'\n0\n"
    );
    assert_eq!(
        text(bench.command("/usr/bin/python3").args(["-c", &script]).output().unwrap()),
        expected
    );
}

#[test]
fn other_paths_are_as_without_us() {
    let bench = Bench::new("others");
    for script in [
        // Without times: the kernel forgets those of sysfs when it is short of memory.
        "ls -l --time-style=+ /sys/class/net",
        "cat /proc/version",
        "ls /",
        "stat -c %n:%i /sys/class /etc/passwd",
        "readlink -f /proc/self/exe",
    ] {
        let without =
            text(Command::new("sh").env("LC_ALL", "C").args(["-c", script]).output().unwrap());
        assert_eq!(bench.shell(script), without, "{script}");
    }
}

#[test]
fn the_kernels_symbols_end_with_those_of_the_tree() {
    let bench = Bench::new("symbols");
    let count =
        "grep -c 'ib_umem_dmabuf_get\\|ib_register_peer_memory_client' /proc/kallsyms || true";
    let machines: u32 = bench.shell(count).trim().parse().unwrap();
    write_entries(&bench.0.join("tree"), &symbol_entries()).unwrap();
    // None stands there twice.
    assert_eq!(bench.shell(count).trim(), machines.max(2).to_string());
    if machines > 0 {
        return;
    }
    let last = "0000000000000000 T ib_umem_dmabuf_get\t[ib_uverbs]\n\
                0000000000000000 T ib_register_peer_memory_client\t[ib_core]\n";
    assert_eq!(bench.shell("tail -n 2 /proc/kallsyms"), last);
    let python = "for line in open('/proc/kallsyms'): last = line\nprint(last, end='')";
    let said = text(bench.command("python3").args(["-c", python]).output().unwrap());
    assert!(last.ends_with(&said) && !said.is_empty(), "{said}");
    // No room for both lists: there is the machine's, and no signal.
    assert_eq!(bench.shell("ulimit -f 1; tail -n 2 /proc/kallsyms").lines().count(), 2);
    let again = "import ctypes, sys\nc = ctypes.CDLL(None)\nc.freopen.restype = ctypes.c_void_p\n\
                 s = ctypes.c_void_p.in_dll(c, 'stdin')\n\
                 assert c.freopen(b'/proc/kallsyms', b'r', s)\n\
                 assert c.write(0, b'x', 1) < 0\n\
                 for line in open(0): last = line\nprint(last, end='')";
    let said = text(bench.command("python3").args(["-c", again]).output().unwrap());
    assert!(last.ends_with(&said) && !said.is_empty(), "{said}");
}

#[test]
fn without_a_tree_only_an_announced_node_exists() {
    let run = |script: &str, announce: bool| {
        let mut command = Command::new("sh");
        command.env("LD_PRELOAD", library()).env_remove(ROOT_VARIABLE).args(["-c", script]);
        if announce {
            command.env("PEERDMA_TEST_ANNOUNCE", "1");
        }
        text(command.output().unwrap())
    };
    let node = "stat -c %F /dev/infiniband/uverbs3 2>&1 | tail -c 23";
    assert_eq!(run(node, true), "character special file\n");
    assert!(run(node, false).ends_with("such file or directory\n"));
    assert!(
        run("stat -c %F /dev/infiniband/uverbs2 2>&1 | cat", true)
            .ends_with("No such file or directory\n")
    );
    let real = text(Command::new("sh").args(["-c", "ls /sys/class"]).output().unwrap());
    assert_eq!(run("ls /sys/class", true), real);
}

fn c_program(name: &str, environment: &[(&str, &str)]) {
    let bench = Bench::new(name);
    let program = bench.compile(name);
    let mut command = bench.command(program);
    command.envs(environment.iter().copied()).arg(bench.0.join("scratch"));
    assert_eq!(text(command.output().unwrap()), "done\n");
}

#[test]
fn every_file_function_in_c() {
    c_program("files", &[]);
}

#[test]
fn every_file_function_in_c_with_a_provider() {
    let bench = Bench::new("provided");
    let program = bench.compile("files");
    let mut command = bench.command(program);
    command.env("PEERDMA_TEST_GID", "live\n").arg(bench.0.join("scratch"));
    assert_eq!(text(command.output().unwrap()), "done\n");
}

#[test]
fn every_memory_function_in_c() {
    c_program("memory", &[]);
}

#[test]
fn every_signal_function_in_c() {
    c_program("signals", &[]);
}

#[test]
fn every_descriptor_function_in_c() {
    c_program("descriptors", &[]);
}

#[test]
fn paths_of_others_are_opened_without_allocating() {
    c_program("handlers", &[]);
}
