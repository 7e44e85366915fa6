//! `peerdma topo` on machines whose answer is known.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A folder of its own, gone at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("peerdma-topo-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn file(&self, name: &str, content: &str) -> String {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn peerdma(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peerdma")).arg("topo").args(arguments).output().unwrap()
}

fn out(arguments: &[&str]) -> String {
    let output = peerdma(arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&out(&[&["--json"], arguments].concat())).unwrap()
}

const DEFAULT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../pcie/src/platforms/default.toml");

#[test]
fn the_default_platform_in_words() {
    let text = out(&["--from", DEFAULT]);
    let expected = "\
Machine  GenuineIntel family 6, read from platform file

socket0  NUMA node 0
└─ 0000:15:01.0 ─ 32 GT/s x16 ─ 0000:16:00.0 switch f0f0:0010
   ├─ 0000:17:00.0 ─ 32 GT/s x16 ─ 0000:18:00.0 NIC peerdma0 f0f0:0001
   ├─ 0000:17:01.0 ─ 32 GT/s x16 ─ 0000:19:00.0 Data Direct peerdma0_dma f0f0:0002
   └─ 0000:17:02.0 ─ 32 GT/s x16 ─ 0000:1a:00.0 GPU gpu0 f0f0:0100

socket1  NUMA node 1
└─ 0000:97:01.0 ─ 32 GT/s x16 ─ 0000:98:00.0 GPU gpu1 f0f0:0100

GPU                 peerdma0
                    0000:18:00.0
0000:1a:00.0  gpu0  PIX
0000:98:00.0  gpu1  SYS
Between them: PIX one PCIe switch, SYS NUMA nodes

GPU                NEAREST NIC            LABEL  P2PDMA            NARROWEST LINK
gpu0 0000:1a:00.0  peerdma0 0000:18:00.0  PIX    BUS_ADDR          63.0 GB/s
gpu1 0000:98:00.0  peerdma0 0000:18:00.0  SYS    THRU_HOST_BRIDGE  63.0 GB/s
";
    assert_eq!(text, expected);
}

#[test]
fn ways_that_share_a_link_share_its_rate() {
    let pairs = ["--pair", "gpu1,peerdma0", "--pair", "0000:1a:00.0,peerdma0"];
    let text = out(&[&["--from", DEFAULT], &pairs[..]].concat());
    assert!(text.contains("interconnect node 0 - node 1"), "{text}");
    assert_eq!(text.matches("at once   31.5 GB/s").count(), 2, "{text}");
    let json = json(&[&["--from", DEFAULT], &pairs[..]].concat());
    assert_eq!(json["pairs"].as_array().unwrap().len(), 2);
    assert_eq!(json["pairs"][1]["p2pdma"], "BUS_ADDR");
    let server = DEFAULT.replace("default.toml", "server.toml");
    let text = out(&["--from", &server, "--pair", "gpu1,peerdma0"]);
    assert!(text.contains("node 0 - node 1  20.0 GB/s"), "{text}");
}

#[test]
fn redirected_requests_go_over_the_host_bridge() {
    let folder = Folder::new("redirect");
    let text = fs::read_to_string(DEFAULT).unwrap();
    let before = "address = \"0000:17:02.0\"\nkind = \"switch-downstream\"\nbelow = \"0000:16:00.0\"\nlink = { speed_gts = 32.0, width = 16 }\nacs = []";
    assert!(text.contains(before));
    let redirected = text.replace(before, &before.replace("acs = []", "acs = [\"RR\"]"));
    let pair = &json(&["--from", &folder.file("a.toml", &redirected)])["pairs"][0];
    assert_eq!((&pair["label"], &pair["p2pdma"]), (&"PIX".into(), &"THRU_HOST_BRIDGE".into()));
    assert_eq!(pair["acs_redirects_at"][0], "0000:17:02.0");
    let unlisted = redirected.replace("8086:09a2", "8086:1234");
    let pair = &json(&["--from", &folder.file("b.toml", &unlisted)])["pairs"][0];
    assert_eq!(pair["p2pdma"], "NOT_SUPPORTED");
    let reason = pair["reason"].as_str().unwrap();
    assert!(reason.contains("pci=disable_acs_redir=0000:17:02.0"), "{reason}");
}

#[test]
fn what_a_source_does_not_tell_is_null() {
    let folder = Folder::new("nccl");
    let file = folder.file(
        "nccl.xml",
        r#"<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/><pci busid="0000:02:00.0" class="0x020700"/></cpu></system>"#,
    );
    let json = json(&["--from", &file]);
    let pair = &json["pairs"][0];
    assert_eq!(pair["label"], Value::Null);
    assert_eq!(pair["possible_labels"], serde_json::json!(["PHB", "NODE"]));
    assert_eq!((&pair["p2pdma"], &pair["bytes_per_second"]), (&"UNKNOWN".into(), &Value::Null));
    assert_eq!(
        (&json["functions"][0]["acs"], &json["functions"][0]["ats"]),
        (&Value::Null, &Value::Null)
    );
    assert!(out(&["--from", &file]).contains("PHB|NODE"));
}

/// A `/sys` with a root port and an adapter.
fn sysfs(folder: &Folder) -> &Path {
    let port = "sys/devices/pci0000:17/0000:17:00.0";
    let card = format!("{port}/0000:18:00.0");
    for (path, content) in [
        (format!("{port}/class"), "0x060400\n"),
        (format!("{port}/vendor"), "0x8086\n"),
        (format!("{port}/device"), "0x09a2\n"),
        (format!("{card}/class"), "0x020700\n"),
        (format!("{card}/vendor"), "0x15b3\n"),
        (format!("{card}/device"), "0x1021\n"),
        (format!("{card}/modalias"), "pci:v000015B3d00001021\n"),
        (format!("{card}/infiniband/mlx5_0/fw_ver"), "28.1\n"),
        ("proc/cpuinfo".into(), "vendor_id : GenuineIntel\ncpu family : 6\n"),
        ("sys/class/dmi/id/product_name".into(), "Box\n"),
    ] {
        folder.file(&path, content);
    }
    let devices = folder.0.join("sys/bus/pci/devices");
    fs::create_dir_all(&devices).unwrap();
    for (name, path) in [("0000:17:00.0", port), ("0000:18:00.0", &card)] {
        let target = format!("../../../{}", path.trim_start_matches("sys/"));
        std::os::unix::fs::symlink(target, devices.join(name)).unwrap();
    }
    &folder.0
}

#[test]
fn a_machine_is_taken_home_and_read_again() {
    let folder = Folder::new("capture");
    let machine = sysfs(&folder).to_str().unwrap();
    let home = folder.0.join("home.tar.gz");
    let said = out(&["--from", machine, "--write-capture", home.to_str().unwrap()]);
    assert!(said.contains("2 functions below 1 host bridges"), "{said}");
    let (there, here) = (json(&["--from", machine]), json(&["--from", home.to_str().unwrap()]));
    assert_eq!(there, here);
    assert_eq!((&here["name"], &here["functions"][1]["name"]), (&"Box".into(), &"mlx5_0".into()));
}

#[test]
fn pictures_are_well_formed() {
    let folder = Folder::new("svg");
    let picture = folder.0.join("machine.svg");
    out(&["--from", DEFAULT, "--svg", picture.to_str().unwrap()]);
    let text = fs::read_to_string(&picture).unwrap();
    assert!(text.starts_with("<svg ") && text.ends_with("</svg>\n"));
    assert_eq!(text.matches("class=\"way\"").count(), 2);
}

#[test]
fn failures_say_what_is_wrong() {
    let folder = Folder::new("bad");
    let graph = folder.file("graph.xml", "<graphs/>");
    let nonsense = folder.file("nonsense", "hello");
    let nowhere = folder.0.join("nowhere");
    for (arguments, reason) in [
        (vec!["--from", &graph], "NCCL_TOPO_DUMP_FILE"),
        (vec!["--from", &nonsense], "not a format that is read here"),
        (vec!["--from", nowhere.to_str().unwrap()], "No such file"),
        (vec!["--from", DEFAULT, "--pair", "gpu0"], "comma"),
        (vec!["--from", DEFAULT, "--pair", "gpu0,mlx5_9"], "there is no mlx5_9"),
        (vec!["--from", DEFAULT, "--write-capture", nowhere.to_str().unwrap()], "/sys in it"),
    ] {
        let output = peerdma(&arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(reason), "{said}");
    }
}

/// The program under a limit of address space, in MiB.
fn within(mib: u64, arguments: &[&str]) -> Output {
    let script = format!("ulimit -v {}; exec \"$0\" topo \"$@\"", mib << 10);
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_peerdma")]).args(arguments);
    shell.output().unwrap()
}

/// A tar with one huge file of zeros, as its compressor makes it.
fn bomb(folder: &Folder) -> String {
    let at = folder.0.join("bomb.tar.bz2");
    let script = "mkdir -p \"$0\"/sys/bus && truncate -s 300M \"$0\"/sys/bus/zeros && \
                  tar -C \"$0\" -cf - sys | gzip -1 > \"$1\" && rm \"$0\"/sys/bus/zeros";
    let done = Command::new("sh").args(["-c", script]).arg(&folder.0).arg(&at).status().unwrap();
    assert!(done.success());
    at.to_str().unwrap().to_owned()
}

#[test]
fn hostile_sources_cost_little_and_are_refused() {
    let folder = Folder::new("hostile");
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(8000), close.repeat(8000));
    let object = deep("<object type=\"Machine\">", "</object>");
    let pci = deep("<pci busid=\"0:0.0\">", "</pci>");
    let entities: String = (1..9)
        .map(|i| format!("<!ENTITY e{i} \"{}\">", format!("&e{};", i - 1).repeat(9)))
        .collect();
    let entities = format!(
        "<!DOCTYPE topology [<!ENTITY e0 \"{}\">{entities}]><topology>&e8;</topology>",
        "x".repeat(1 << 20)
    );
    let fifo = folder.0.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let empty = folder.0.join("empty");
    fs::create_dir_all(&empty).unwrap();
    let many = "00:00.0 PCI bridge: x\n".repeat(100_000);
    for (source, reason) in [
        (
            folder.file("deep-hwloc.xml", &format!("<topology>{object}</topology>")),
            "nested more than",
        ),
        (
            folder.file("deep-nccl.xml", &format!("<system><cpu>{pci}</cpu></system>")),
            "nested more than",
        ),
        (folder.file("entities.xml", &entities), "it declares entities"),
        (folder.file("many.txt", &many), "more than 16384 PCI functions"),
        (bomb(&folder), "after decompression"),
        ("/dev/zero".to_owned(), "neither a regular file nor a folder"),
        (fifo.to_str().unwrap().to_owned(), "neither a regular file nor a folder"),
        (empty.to_str().unwrap().to_owned(), "there is no /sys in it"),
    ] {
        let output = within(600, &["--from", &source]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{source}: {:?} {said}", output.status);
        assert!(said.contains(reason), "{source}: {said}");
    }
}

#[test]
fn a_fifo_within_a_capture_is_not_waited_for() {
    let folder = Folder::new("fifo");
    let machine = sysfs(&folder).to_str().unwrap().to_owned();
    let fifo = folder.0.join("sys/devices/pci0000:17/0000:17:00.0/config");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    assert_eq!(json(&["--from", &machine])["functions"].as_array().unwrap().len(), 2);
}

#[test]
fn what_a_machine_says_of_itself_does_not_reach_the_terminal_as_commands() {
    let folder = Folder::new("escape");
    let evil = "\u{1b}]0;owned\u{7}\u{9b}2J\u{202e}";
    let file = folder.file(
        "nccl.xml",
        &format!(
            r#"<system version="1"><cpu numaid="{evil}0" vendor="{evil}A" familyid="143"><pci busid="0000:01:00.0" class="0x030200"/>
            <pci busid="0000:02:00.0" class="0x020700"><nic><net name="mlx5_{evil}0"/></nic></pci></cpu></system>"#
        )
        .replace('\u{1b}', "")
        .replace('\u{7}', ""),
    );
    let lspci = folder.file(
        "lspci.txt",
        &format!("01:00.0 3D controller [0302]: NVIDIA [10de:2330]\n\tKernel driver in use: nv{evil}\n\
                  02:00.0 Infiniband controller [0207]: M [15b3:1021]\n\tKernel driver in use: {evil}mlx5_core\n"),
    );
    let sys = sysfs(&folder).to_str().unwrap().to_owned();
    fs::write(folder.0.join("sys/class/dmi/id/product_name"), format!("Box{evil}\n")).unwrap();
    fs::rename(
        folder.0.join("sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/infiniband/mlx5_0"),
        folder.0.join(format!(
            "sys/devices/pci0000:17/0000:17:00.0/0000:18:00.0/infiniband/mlx5_{evil}"
        )),
    )
    .unwrap();
    let picture = folder.0.join("p.svg").to_str().unwrap().to_owned();
    for source in [&file, &lspci, &sys] {
        let all = out(&["--from", source, "--all"]) + &out(&["--from", source, "--json"]);
        out(&["--from", source, "--all", "--svg", &picture]);
        let all = all + &fs::read_to_string(&picture).unwrap();
        let obeyed = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!all.contains(obeyed), "{source}: {all:?}");
    }
}

#[test]
fn this_machine_is_read() {
    // whatever it is, in a container too
    assert!(json(&[])["functions"].is_array());
    out(&[]);
}
