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
    let before = "address = \"0000:17:02.0\"\nkind = \"switch-downstream\"\n\
                  below = \"0000:16:00.0\"\nlink = { speed_gts = 32.0, width = 16 }\nacs = []";
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
        concat!(
            r#"<system version="1"><cpu numaid="0"><pci busid="0000:01:00.0" class="0x030200"/>"#,
            r#"<pci busid="0000:02:00.0" class="0x020700"/></cpu></system>"#
        ),
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
    assert!(said.contains("2 functions below 1 host bridge."), "{said}");
    let (there, here) = (json(&["--from", machine]), json(&["--from", home.to_str().unwrap()]));
    assert_eq!(there, here);
    assert_eq!((&here["name"], &here["functions"][1]["name"]), (&"Box".into(), &"mlx5_0".into()));
}

/// Eight switches, below each a GPU and four adapters.
fn wide() -> String {
    let mut text = "cpu = { vendor = \"GenuineIntel\", family = 6 }\n".to_owned();
    let mut rest = String::new();
    let port = |rest: &mut String, at: &str, kind: &str, below: &str| {
        *rest += &format!("[[port]]\naddress = \"{at}\"\nkind = \"{kind}\"\nbelow = \"{below}\"\n");
    };
    for switch in 0..8 {
        let bus = 0x10 + switch * 0x10;
        let node = switch / 4;
        text += &format!("[[host_bridge]]\nname = \"host{switch}\"\nnuma_node = {node}\n");
        let (root, up) = (format!("{bus:02x}:01.0"), format!("{:02x}:00.0", bus + 1));
        port(&mut rest, &root, "root-port", &format!("host{switch}"));
        port(&mut rest, &up, "switch-upstream", &root);
        for slot in 0..5 {
            let down = format!("{:02x}:{slot:02x}.0", bus + 2);
            port(&mut rest, &down, "switch-downstream", &up);
            let (name, role, id, class) = match slot {
                0 => (format!("gpu{switch}"), "gpu", "10de:2330", "0x030200"),
                slot => (format!("mlx5_{}", switch * 4 + slot - 1), "hca", "15b3:1021", "0x020700"),
            };
            rest += &format!(
                "[[function]]\nname = \"{name}\"\nrole = \"{role}\"\naddress = \"{:02x}:00.0\"\n\
                 below = \"{down}\"\nid = \"{id}\"\nclass = {class}\n",
                bus + 3 + slot
            );
        }
    }
    text + &rest
}

/// The lines that a terminal of 120 columns would break.
fn too_long(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.chars().count() > 120).collect()
}

#[test]
fn a_wide_machine_fits_into_a_page() {
    let folder = Folder::new("wide");
    let text = out(&["--from", &folder.file("wide.toml", &wide())]);
    assert_eq!(too_long(&text), [""; 0], "{text}");
    let heading = text.lines().find(|line| line.starts_with("GPU ")).unwrap();
    assert!(heading.contains("mlx5_{0..3}"), "{text}");
    assert_eq!(text.matches("4 alike").count(), 8, "{text}");
    assert_eq!(text.lines().filter(|line| line.starts_with("GPU ")).count(), 3, "{text}");
}

#[test]
fn adapters_without_names_are_told_by_a_range_of_addresses() {
    let folder = Folder::new("nameless");
    let adapters: String = (0x09..0x29)
        .map(|bus| format!("{bus:02x}:00.0 Infiniband controller [0207]: M [15b3:1021]\n"))
        .collect();
    let gpu = "00:02.0 3D controller [0302]: NVIDIA Corporation H100 [10de:2330]\n";
    let text = out(&["--from", &folder.file("lspci.txt", &format!("{gpu}{adapters}"))]);
    let nearest = text.lines().find(|line| line.contains("0000:{09..28}:00.0"));
    assert!(nearest.is_some_and(|line| line.starts_with("GPU0 0000:00:02.0")), "{text}");
    let tables: Vec<&str> = text.lines().filter(|line| line.starts_with("GPU")).collect();
    assert_eq!(too_long(&tables.join("\n")), [""; 0], "{text}");
}

#[test]
fn links_between_gpus_are_told_without_adapters() {
    let folder = Folder::new("links");
    let gpu = |at: &str, dev: u32, other: &str| {
        let link = format!(r#"<nvlink target="{other}" count="18" tclass="0x030200"/>"#);
        format!(r#"<pci busid="{at}" class="0x030200"><gpu dev="{dev}" sm="90">{link}</gpu></pci>"#)
    };
    let (one, two) = ("0000:01:00.0", "0000:02:00.0");
    let file = folder.file(
        "nccl.xml",
        &format!(
            r#"<system version="1"><cpu numaid="0">{}{}</cpu></system>"#,
            gpu(one, 0, two),
            gpu(two, 1, one)
        ),
    );
    let text = out(&["--from", &file]);
    assert!(text.lines().any(|line| line == "NVLink ×18: each of GPU{0,1} with each"), "{text}");
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

/// The program under a limit of address space, in MiB, and of a minute.
fn within(mib: u64, arguments: &[&str]) -> Output {
    let script = format!("ulimit -v {}; exec timeout 60 \"$0\" \"$@\"", mib << 10);
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
    let crowd = folder.file("crowd.txt", &crowd(5000));
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
        (crowd, "1 GPUs with 5000 adapters are more than one machine has"),
        (bomb(&folder), "after decompression"),
        ("/dev/zero".to_owned(), "neither a regular file nor a folder"),
        (fifo.to_str().unwrap().to_owned(), "neither a regular file nor a folder"),
        (empty.to_str().unwrap().to_owned(), "there is no /sys in it"),
    ] {
        let output = within(600, &["topo", "--from", &source]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{source}: {:?} {said}", output.status);
        assert!(said.contains(reason), "{source}: {said}");
    }
}

/// A GPU and adapters without names, as lspci lists them.
fn crowd(adapters: usize) -> String {
    let mut text = "00:02.0 3D controller [0302]: NVIDIA Corporation H100 [10de:2330]\n".to_owned();
    for number in 0..adapters {
        let (bus, device) = (1 + (number >> 5), number & 31);
        text += &format!(
            "{bus:02x}:{device:02x}.0 Infiniband controller [0207]: Mellanox Technologies MT2910 \
             [15b3:1021]\n"
        );
    }
    text
}

/// As many pairs as are judged at all.
#[test]
fn the_largest_machine_that_is_judged_costs_little() {
    let folder = Folder::new("largest");
    let crowd = folder.file("crowd.txt", &crowd(4096));
    for arguments in [&["topo"][..], &["topo", "--json"], &["doctor"], &["doctor", "--json"]] {
        let output = within(600, &[arguments, &["--from", &crowd]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{:?} {said}", output.status);
    }
}

#[test]
fn a_platform_that_is_no_file_is_refused() {
    let folder = Folder::new("platform");
    let fifo = folder.0.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for platform in [fifo.to_str().unwrap(), "/dev/zero"] {
        let output = within(600, &["env", "--platform", platform]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{platform}: {said}");
        assert!(said.contains("not a regular file"), "{platform}: {said}");
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
            concat!(
                r#"<system version="1"><cpu numaid="{evil}0" vendor="{evil}A" familyid="143">"#,
                r#"<pci busid="0000:01:00.0" class="0x030200"/>
            <pci busid="0000:02:00.0" class="0x020700">"#,
                r#"<nic><net name="mlx5_{evil}0"/></nic></pci></cpu></system>"#
            ),
            evil = evil
        )
        .replace('\u{1b}', "")
        .replace('\u{7}', ""),
    );
    let lspci = folder.file(
        "lspci.txt",
        &format!(
            "01:00.0 3D controller [0302]: NVIDIA [10de:2330]\n\
             \tKernel driver in use: nv{evil}\n\
             02:00.0 Infiniband controller [0207]: M [15b3:1021]\n\
             \tKernel driver in use: {evil}mlx5_core\n"
        ),
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
