//! A platform with two HCAs: each is a device of its own to unmodified programs.

use system::{Namespace, Run, c_program, is_root, judged, pair, peerdma, port, skip};

/// A machine with two sockets, an HCA and a GPU on each.
const PLATFORM: &str = "server";

fn on_server(line: &str) -> Run {
    Run::hca(line).option("--platform").option(PLATFORM)
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
