//! The main job as a user meets it: it proves, it refuses to prove what is not so, and it leaves
//! nothing behind.

use std::path::PathBuf;
use std::process::{Command, Output};
use test_support::note_skip;

struct Folders(PathBuf);

impl Folders {
    fn new(name: &str) -> Folders {
        let root = std::env::temp_dir().join(format!("peerdma-demo-{name}-{}", std::process::id()));
        std::fs::create_dir_all(root.join("tmp")).unwrap();
        Folders(root)
    }

    /// In the test program's own network: the calling thread moves there.
    fn command(&self, arguments: &[&str]) -> Command {
        test_support::network::enter();
        let mut command = Command::new(env!("CARGO_BIN_EXE_peerdma"));
        command.arg("demo").args(arguments).env("TMPDIR", self.0.join("tmp"));
        command
    }

    fn demo(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn file(&self, name: &str, content: &[u8]) -> String {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn assert_nothing_left(&self) {
        let left: Vec<_> =
            std::fs::read_dir(self.0.join("tmp")).unwrap().flatten().map(|e| e.path()).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Folders {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Whether a demo with device-private pages was refused as a plain user is: faults of system calls
/// are not everybody's to serve.
fn lacks_userfaultfd(output: &Output) -> bool {
    let said = text(&output.stderr);
    let is_root = test_support::is_root();
    !is_root && said.contains("peerdma_migrate_to_gpu") && said.contains("not permitted")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_first_line_says_what_was_proven() {
    let place = Folders::new("words");
    let output = place.demo(&["--size", "3M"]);
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{err}");
    let first = out.lines().next().unwrap();
    assert!(first.starts_with("Proven: 3.0 MiB of GPU memory went to another"), "{first}");
    for word in [
        "gpu0",
        "gpu1",
        "peerdma0",
        "lkey",
        "rkey",
        "fd ",
        "BUS_ADDR",
        "THRU_HOST_BRIDGE",
        "RDMA WRITE",
        "RDMA READ",
    ] {
        assert!(out.contains(word), "{word}: {out}");
    }
    assert!(!out.contains('\u{1b}') && err.is_empty(), "{err}");
    place.assert_nothing_left();
}

#[test]
fn each_kind_of_memory_takes_its_route() {
    let place = Folders::new("kinds");
    for (kind, near, far) in [
        ("dmabuf", "BUS_ADDR", "THRU_HOST_BRIDGE"),
        ("dmabuf-pinned", "BUS_ADDR", "THRU_HOST_BRIDGE"),
        ("peer", "BUS_ADDR", "THRU_HOST_BRIDGE"),
        ("device-private", "BUS_ADDR", "THRU_HOST_BRIDGE"),
        ("odp", "NONE", "NONE"),
        ("host", "NONE", "NONE"),
    ] {
        let size = 100_001;
        let output = place.demo(&["--size", "100001", "--memory", kind, "--json"]);
        if kind == "device-private" && lacks_userfaultfd(&output) {
            note_skip("device-private pages need the right to userfaultfd(2), as root has it");
            continue;
        }
        assert!(output.status.success(), "{kind}: {}", text(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        for (side, route) in [(&json["sides"][0], near), (&json["sides"][1], far)] {
            assert_eq!(side["memory"], kind);
            assert_eq!(side["route"]["map_type"], route, "{kind}: {side}");
            assert!(side["route"]["read_bytes"].as_u64() >= Some(size), "{kind}: {side}");
            assert!(side["route"]["written_bytes"].as_u64() >= Some(size), "{kind}: {side}");
            let faults = side["page_faults"].as_u64().unwrap();
            assert_eq!(faults > 0, ["odp", "device-private"].contains(&kind), "{kind}: {side}");
            let pages = side["pages_in_gpu"].as_u64().unwrap();
            assert_eq!(pages > 0, kind == "device-private", "{kind}: {side}");
        }
    }
    let output = place.demo(&["--size", "64K", "--memory", "host"]);
    let out = text(&output.stdout);
    assert!(
        out.starts_with("Proven: 64.0 KiB of host memory went to another process's and"),
        "{out}"
    );
    place.assert_nothing_left();
}

#[test]
fn odd_sizes_cross_and_the_hash_is_the_files() {
    let place = Folders::new("sizes");
    let content: Vec<u8> =
        (0..1_234_567_u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let file = place.file("file", &content);
    for size in [1, 4095, 4097, content.len()] {
        let output = place.demo(&["--file", &file, "--size", &size.to_string(), "--json"]);
        assert!(output.status.success(), "{size}: {}", text(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["proven"], true);
        assert_eq!(json["bytes"], size);
        assert_eq!(json["blake3"], blake3::hash(&content[..size]).to_hex().as_str());
        assert_eq!(json["write"]["bytes"], size);
        let [near, far] = [&json["sides"][0], &json["sides"][1]];
        assert_ne!(near["pid"], far["pid"]);
        assert_ne!(near["gpu"]["address"], far["gpu"]["address"]);
        // The bytes crossed in packets: there once, and back once.
        assert!(far["traffic"]["received_bytes"].as_u64().unwrap() >= size as u64, "{far}");
        assert!(far["traffic"]["sent_bytes"].as_u64().unwrap() >= size as u64, "{far}");
        // And over every link between a GPU and its HCA in both directions; nothing over the other
        // GPU's.
        for side in [near, far] {
            let links = side["links"].as_array().unwrap();
            assert!(!links.is_empty());
            for link in links {
                assert!(link["bytes"].as_u64().unwrap() >= 2 * size as u64, "{side}");
            }
            assert!(side["route"]["read_bytes"].as_u64().unwrap() >= size as u64, "{side}");
            assert!(side["route"]["written_bytes"].as_u64().unwrap() >= size as u64, "{side}");
        }
        assert!(!link_names(near).contains(&"link below 0000:97:01.0".to_owned()), "{near}");
        assert!(!link_names(far).contains(&"link below 0000:17:02.0".to_owned()), "{far}");
    }
}

fn link_names(side: &serde_json::Value) -> Vec<String> {
    let links = side["links"].as_array().unwrap();
    links.iter().map(|link| link["name"].as_str().unwrap().to_owned()).collect()
}

/// The library counts by the platform it is given: with ACS redirection the near GPU's bytes take
/// the root complex.
#[test]
fn another_platform_is_another_route_with_bytes_of_its_own() {
    let place = Folders::new("acs");
    let default = include_str!("../../pcie/src/platforms/default.toml");
    let toml = default.replace("acs = []", "acs = [\"SV\", \"RR\"]");
    assert_ne!(toml, default);
    let platform = place.file("acs.toml", toml.as_bytes());
    let size = 300_000;
    let output = place.demo(&["--platform", &platform, "--size", &size.to_string(), "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let near = &json["sides"][0];
    assert_eq!(near["route"]["map_type"], "THRU_HOST_BRIDGE");
    let links = near["links"].as_array().unwrap();
    let root =
        links.iter().find(|link| link["name"] == "root complex 0").expect("the root complex");
    assert!(root["bytes"].as_u64().unwrap() >= 2 * size, "{near}");
    // Up through the root port and down again: the same link twice.
    let port = links.iter().find(|link| link["name"] == "link below 0000:15:01.0").unwrap();
    assert!(port["bytes"].as_u64().unwrap() >= 4 * size, "{near}");
}

#[test]
fn a_size_beyond_the_file_repeats_it() {
    let place = Folders::new("repeat");
    let file = place.file("file", b"abc");
    let output = place.demo(&["--file", &file, "--size", "1000", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let repeated: Vec<u8> = b"abc".iter().copied().cycle().take(1000).collect();
    assert_eq!(json["blake3"], blake3::hash(&repeated).to_hex().as_str());
}

#[test]
fn one_wrong_byte_is_no_proof() {
    let place = Folders::new("corrupt");
    for arguments in
        [&["--size", "100K", "--corrupt"][..], &["--size", "100K", "--corrupt", "--json"]]
    {
        let output = place.demo(arguments);
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(text(&output.stdout), "");
        let err = text(&output.stderr);
        assert!(
            err.contains("hash") && err.contains("first at byte 51200") && err.contains("to do:"),
            "{err}"
        );
    }
    place.assert_nothing_left();
}

#[test]
fn a_file_that_is_not_there_is_said_at_once() {
    let place = Folders::new("nofile");
    for (file, why) in [
        ("/no/such/file", "No such file"),
        ("/", "not a regular file"),
        ("/dev/null", "not a regular file"),
    ] {
        let output = place.demo(&["--file", file]);
        assert_eq!(output.status.code(), Some(1));
        let err = text(&output.stderr);
        assert!(err.contains(file) && err.contains(why), "{err}");
    }
    let empty = place.file("empty", b"");
    assert!(text(&place.demo(&["--file", &empty]).stderr).contains("it is empty"));
}

#[test]
fn why_a_device_does_not_open_is_told_with_the_failure() {
    let place = Folders::new("reason");
    let missing = place.0.join("missing/t.pcap");
    let output = place.command(&["--size", "4K"]).env("PEERDMA_TRACE", missing).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let err = text(&output.stderr);
    assert!(err.starts_with("peerdma: cannot open the device: the packet trace"), "{err}");
    assert!(err.contains("side failed") && err.contains("ibv_open_device"), "{err}");
    place.assert_nothing_left();
}

#[test]
fn two_demos_at_once_do_not_disturb_each_other() {
    let place = Folders::new("two");
    std::thread::scope(|scope| {
        let runs: Vec<_> =
            (0..3).map(|_| scope.spawn(|| place.demo(&["--size", "2M", "--json"]))).collect();
        for run in runs {
            let output = run.join().unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
    });
    place.assert_nothing_left();
}

/// What the platform says of ACS decides the rate of paced links too, for the same program.
#[test]
fn paced_links_take_their_time_on_the_way_that_acs_chooses() {
    let place = Folders::new("pace");
    // A root complex that carries 100 MB a second.
    let straight = include_str!("../../pcie/src/platforms/default.toml")
        .replace("numa_node = 0\n", "numa_node = 0\nbytes_per_second = 100_000_000\n");
    let redirected = straight.replace("acs = []", "acs = [\"SV\", \"RR\"]");
    assert!(straight.contains("100_000_000") && straight != redirected);
    let seconds = |name: &str, toml: &str| {
        let platform = place.file(name, toml.as_bytes());
        let switches = ["--platform", &platform, "--pace", "--size", "20000000", "--json"];
        let output = place.demo(&switches);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(json["proven"], true);
        json["write"]["seconds"].as_f64().unwrap()
    };
    // 200 ms at least, but for what may run ahead. By the switch nothing is near its rate; how fast
    // it is depends on the machine.
    let over_root = seconds("redirected.toml", &redirected);
    assert!(over_root > 0.18, "{over_root}");
    assert!(seconds("straight.toml", &straight) > 0.0);
}

#[test]
fn a_provider_makes_dma_bufs_and_nothing_else() {
    let place = Folders::new("provider");
    let output = place.demo(&["--provider", "udmabuf", "--memory", "odp"]);
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(err.contains("udmabuf makes no memory of kind odp"), "{err}");
    place.assert_nothing_left();
}
