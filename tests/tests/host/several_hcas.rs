//! A platform with two HCAs: each is a device of its own to unmodified programs.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
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
    let (first, second) = ("0000:16:00.0", "0000:9a:00.0");
    for (bound, address, function) in [
        ("", "10.9.0.1", first),
        ("", "10.9.1.1", second),
        ("-a 10.9.0.1", "10.9.0.1", first),
        ("-a 10.9.1.1", "10.9.1.1", second),
    ] {
        // Answers come to the device that asked: another one gets no more than the request of a
        // client that is alone. One that came before anybody listened is refused by itself, and
        // begins anew.
        let mut seen = Vec::new();
        let few = |counts: &Vec<u64>| counts.iter().all(|count| *count <= 1);
        while !seen.last().is_some_and(few) {
            assert!(seen.len() < 5, "{bound}, {address}: {seen:?}");
            let client = format!("-a {address}");
            seen.push(received_by_idle(&counted(&host, &platform, bound, &client), function));
        }
    }
}

/// Who connects from an address goes out of the HCA that has it, wherever it connects to.
#[test]
fn a_connection_leaves_by_the_hca_that_has_its_own_address() {
    if !system::has("rping") || !is_root() {
        skip!("needs rdmacm-utils, and root for a network namespace");
    }
    let host = host_with_wires();
    let platform = divided();
    let functions = ["0000:16:00.0", "0000:9a:00.0"];
    for (from, to) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let client = format!("-I 10.9.{from}.1 -a 10.9.{to}.1");
        received_by_idle(&counted(&host, &platform, "", &client), functions[from]);
    }
}

/// The counters of the clients of an rping server, which is bound to an address or to all.
fn counted(host: &Namespace, platform: &Path, bound: &str, client: &str) -> Counters {
    let counters = RefCell::new(Counters::new());
    system::converse(true, |port| {
        // Both may have to start anew.
        let fresh = Counters::new();
        let run = |line: &str| Run::hca(line).within(host).option("--platform").option(platform);
        let server = run(&format!("rping -s {bound} -p {port} -C 10 -V"));
        let client = run(&format!("rping -c {client} -p {port} -C 10 -V"));
        let client = client.env("PEERDMA_COUNTERS", fresh.file());
        counters.replace(fresh);
        (server, client)
    });
    counters.into_inner()
}

/// What each device said of itself when it was closed.
fn reports(text: &str) -> Vec<&str> {
    let begin = text.split_inclusive('\n').next().and_then(|line| line.split(' ').next());
    let begin = format!("{} ", begin.expect("a counter"));
    let starts = text.match_indices(&begin).map(|(at, _)| at);
    let starts: Vec<usize> =
        starts.filter(|at| *at == 0 || text.as_bytes()[at - 1] == b'\n').collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts.iter().zip(ends).map(|(start, end)| &text[*start..end]).collect()
}

/// Packets received by every device that moved nothing; one moved all, by `function`.
#[track_caller]
fn received_by_idle(counters: &Counters, function: &str) -> Vec<u64> {
    let text = counters.text();
    let route = format!("route {function} host memory ");
    // The way of a client that was refused is there, and nothing has gone it.
    let moved = |line: &str| line.starts_with(&route) && !line.ends_with(" 0 0");
    let (at_work, idle): (Vec<&str>, Vec<&str>) =
        reports(&text).into_iter().partition(|report| report.lines().any(moved));
    assert_eq!(at_work.len(), 1, "{function}: {text}");
    idle.iter().map(|report| received(report)).collect()
}

fn received(report: &str) -> u64 {
    let line = report.lines().find_map(|line| line.strip_prefix("rcvd_pkts "));
    line.and_then(|count| count.parse().ok()).expect("the counter")
}

/// Packets that came to the processes of a host so far, as `peerdma ps` tells it.
fn received_packets(host: &Namespace) -> u64 {
    let listed = Run::plain(&format!("{} ps --json", peerdma().display())).within(host).finish();
    let listed: serde_json::Value = serde_json::from_str(&listed.ok().stdout).unwrap();
    let all = listed["processes"].as_array().unwrap().iter();
    all.filter_map(|process| process["counters"]["rcvd_pkts"].as_u64()).sum()
}

/// The service is everywhere where a device is: a request at another address of the host is not
/// taken, but by whom the connection is made that is asked for after it.
#[test]
fn no_request_is_taken_at_an_address_that_no_hca_has() {
    if !system::has("rping") || !is_root() {
        skip!("needs rdmacm-utils, and root for a network namespace");
    }
    let host = host_with_wires();
    host.output("ip link add other type veth peer name farther");
    host.output("ip link set farther up");
    host.output("ip addr add 10.9.2.1/24 dev other");
    host.output("ip link set other up");
    let platform = divided();
    let run = |line: &str| Run::hca(line).within(&host).option("--platform").option(&platform);
    for _ in 0..10 {
        let port = port();
        let mut server = run(&format!("rping -s -p {port} -C 1 -V")).start();
        let stray = run(&format!("rping -c -I 10.9.0.1 -a 10.9.2.1 -p {port} -C 1 -V")).start();
        let stray = RefCell::new(stray);
        let came = || received_packets(&host) > 0 || !stray.borrow_mut().alive();
        server.until("no request came", |_| came());
        let mut stray = stray.into_inner();
        let client = run(&format!("rping -c -a 10.9.1.1 -p {port} -C 1 -V")).finish();
        // Where the server did not listen yet, either client hears so.
        if client.succeeded() && stray.alive() {
            system::done(server.finish());
            return;
        }
        assert!(server.alive(), "{client}\nthe stray one: {}", stray.said());
    }
    panic!("the server never listened in time");
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
        Ok(program) => judged(on_server(&program.display().to_string()), 38),
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
