//! A platform with two HCAs: each is a device of its own to unmodified programs.

use std::path::PathBuf;
use system::{
    Counters, Namespace, Run, c_program, is_root, judged, pair, peerdma, port, shared_dir, skip,
};

/// A machine with two sockets, an HCA and a GPU on each.
const PLATFORM: &str = "server";

fn on_server(line: &str) -> Run {
    Run::hca(line).option("--platform").option(PLATFORM)
}

/// The same, whose HCAs have the interfaces `wire0` and `wire1` for themselves.
fn divided() -> PathBuf {
    let text = Run::program(peerdma()).args(&["platforms", PLATFORM]).finish().ok().stdout;
    let give = |text: &str, number: u32| {
        let name = format!("name = \"peerdma{number}\",");
        assert!(text.contains(&name), "{text}");
        text.replacen(&name, &format!("{name} interfaces = [\"wire{number}\"],"), 1)
    };
    let path = shared_dir().join(format!("divided-{}.toml", port()));
    std::fs::write(&path, give(&give(&text, 0), 1)).expect("a platform file");
    path
}

/// A host with an interface for each, 10.9.0.1 and 10.9.1.1.
fn host_with_wires() -> Namespace {
    let host = Namespace::new("wires");
    for number in 0..2 {
        host.output(&format!("ip link add wire{number} type veth peer name far{number}"));
        host.output(&format!("ip link set far{number} up"));
        host.output(&format!("ip addr add 10.9.{number}.1/24 dev wire{number}"));
        host.output(&format!("ip link set wire{number} up"));
    }
    host
}

#[test]
fn the_connection_manager_takes_the_hca_that_has_the_address() {
    if !system::has("rping") || !is_root() {
        skip!("needs rdmacm-utils, and root for a network namespace");
    }
    let host = host_with_wires();
    let platform = divided();
    for (address, function, other) in
        [("10.9.0.1", "0000:16:00.0", "0000:9a:00.0"), ("10.9.1.1", "0000:9a:00.0", "0000:16:00.0")]
    {
        let counters = Counters::new();
        system::converse(true, |port| {
            let run = |line: &str| {
                let run = Run::hca(line).within(&host).option("--platform").option(&platform);
                run.env("PEERDMA_COUNTERS", counters.file())
            };
            let server = run(&format!("rping -s -p {port} -C 10 -V"));
            (server, run(&format!("rping -c -a {address} -p {port} -C 10 -V")))
        });
        let text = counters.text();
        let moved = |function: &str| text.contains(&format!("\nroute {function} host memory"));
        assert!(moved(function) && !moved(other), "{address}: {text}");
    }
}

#[test]
fn an_interface_that_an_hca_names_is_its_alone() {
    if !system::has("ibv_devinfo") || !is_root() {
        skip!("needs ibverbs-utils, and root for a network namespace");
    }
    let (host, platform) = (host_with_wires(), divided());
    let run = |line: &str| {
        let run = Run::hca(line).within(&host).option("--platform").option(&platform);
        run.finish().ok().stdout
    };
    for (number, other) in [(0, 1), (1, 0)] {
        let info = run(&format!("ibv_devinfo -v -d peerdma{number}"));
        assert!(info.contains(&format!("::ffff:10.9.{number}.1")), "{info}");
        assert!(!info.contains(&format!("::ffff:10.9.{other}.1")), "{info}");
        let net = run(&format!("ls /sys/class/infiniband/peerdma{number}/device/net"));
        assert_eq!(net, format!("wire{number}\n"));
    }
}

#[test]
fn both_are_devices_of_one_process() {
    match c_program("two_devices") {
        Ok(program) => judged(on_server(&program.display().to_string()), 30),
        Err(reason) => skip!("{reason}"),
    };
}

#[test]
fn the_library_lists_both_without_a_tree() {
    if !system::has("ibv_devices") {
        skip!("ibv_devices is not installed (package ibverbs-utils)");
    }
    let listed = on_server("env -u PEERDMA_SYSFS ibv_devices").finish().ok();
    let named = |name: &str| listed.stdout.lines().any(|line| line.trim().starts_with(name));
    assert!(named("peerdma0") && named("peerdma1"), "{listed}");
}

#[test]
fn sysfs_says_where_each_sits() {
    let cat =
        |file: &str| on_server(&format!("cat /sys/class/infiniband/{file}")).finish().ok().stdout;
    for (name, address, node) in [("peerdma0", "0000:16:00.0", 0), ("peerdma1", "0000:9a:00.0", 1)]
    {
        assert_eq!(cat(&format!("{name}/device/numa_node")), format!("{node}\n"));
        let line = format!("readlink -f /sys/class/infiniband/{name}/device");
        let path = on_server(&line).finish().ok().stdout;
        assert!(path.trim().ends_with(address), "{path}");
        assert_eq!(cat(&format!("{name}/ports/1/state")), "4: ACTIVE\n");
    }
    let nodes = on_server("ls /dev/infiniband").finish().ok().stdout;
    assert_eq!(nodes, "rdma_cm\nuverbs0\nuverbs1\n");
    let line =
        "cat /sys/class/infiniband_verbs/uverbs1/ibdev /sys/class/infiniband_verbs/uverbs1/dev";
    assert_eq!(on_server(line).finish().ok().stdout, "peerdma1\n231:193\n");
}

#[test]
fn a_program_opens_only_the_device_it_uses() {
    if !system::has("ibv_rc_pingpong") || !is_root() {
        skip!("needs ibverbs-utils, and root for a network namespace");
    }
    let host = Namespace::new("hcas");
    let port = port();
    let line =
        |device: &str| on_server(&format!("ibv_rc_pingpong -d {device} -g 0 -n 2000 -c -p {port}"));
    let server = line("peerdma1").within(&host);
    let client = line("peerdma0").arg("127.0.0.1").within(&host);
    let (_, client) = pair(server, Some(&host), client, port);
    assert!(client.stdout.contains("iters in"), "{client}");

    let mut server = line("peerdma1").within(&host).start();
    system::listening(port, Some(&host), &mut server);
    let listed =
        Run::plain(&format!("{} ps --json", peerdma().display())).within(&host).finish().ok();
    server.signal(rustix::process::Signal::KILL);
    let listed: serde_json::Value = serde_json::from_str(&listed.stdout).unwrap();
    let devices: Vec<_> =
        listed["processes"].as_array().unwrap().iter().map(|p| &p["device"]).collect();
    assert_eq!(devices, ["peerdma1"]);
}
